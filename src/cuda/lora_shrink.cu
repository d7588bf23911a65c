#include <cooperative_groups.h>

#include "cuda/launch.h"
#include "cuda/lora_shrink_kernel.h"
#include "cuda/primitives.cuh"

namespace medley::cuda {
namespace {

constexpr int kHalfRows = 8;

struct HalfSums {
  float value[2][4] = {};
};

// This warp's blocks of 32 columns: first, first + step, ...
struct Stride {
  int first = 0;
  int step = 0;
};

template <int kHalves>
__device__ __forceinline__ void add_blocks(HalfSums& sum, const LoraShrinkParams& p,
                                           const uint8_t* a, const __nv_bfloat16* const (&x)[2],
                                           Stride stride) {
  const int lane = threadIdx.x % kWarpSize;
  const int num_blocks = p.layout.padded_cols / 32;
#pragma unroll 3
  for (int block = stride.first; block < num_blocks; block += stride.step) {
    const uint8_t* weights = a + static_cast<int64_t>(block) * 1024 + lane * 16;
    const uint4 low = *reinterpret_cast<const uint4*>(weights);
    const uint4 high = *reinterpret_cast<const uint4*>(weights + 512);
    const int col = block * 32 + lane % 4 * 8;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      uint4 v = {};
      if (col < p.in_size) v = __ldcg(reinterpret_cast<const uint4*>(x[h] + col));
      mma_16x8x16(sum.value[h], {low.x, high.x, low.y, high.y}, v.x, v.y, sum.value[h]);
      mma_16x8x16(sum.value[h], {low.z, high.z, low.w, high.w}, v.z, v.w, sum.value[h]);
    }
  }
}

}  // namespace

// 48 registers and 8 warps: what expert_gemm leaves of an SM.
__global__ void __maxnreg__(48)
    lora_shrink_kernel(const __grid_constant__ LoraShrinkParams p,
                       const __grid_constant__ LoraShrinkConfig config) {
  namespace cg = cooperative_groups;
  __shared__ float sums[kMaxShrinkWarps][kUnitRows * kHalfRows];
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank_in_cluster = blockIdx.x % config.cluster;
  wait_for_predecessor();
  launch_dependents();
  const int segment_idx = blockIdx.x / config.cluster;
  // Read together: entries past the count exist, whatever they hold.
  const int num_segments = *p.routing.num_segments;
  const RouteSegment segment = p.routing.segments[segment_idx];
  if (segment_idx >= num_segments) return;
  const LoraEntry entry = p.lora[segment.slot];
  const int num_units = entry.num_a * entry.rank / kUnitRows;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int num_warps = config.num_warps;
  const Stride stride = {.first = rank_in_cluster * num_warps + warp,
                         .step = config.cluster * num_warps};

  const __nv_bfloat16* x[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int pair = segment.begin + min(h * kHalfRows + lane / 4, segment.count - 1);
    const int64_t row = p.x_by_row ? p.routing.row_of_pair[pair] : pair;
    x[h] = p.x + row * p.in_size;
  }
  for (int unit = blockIdx.y; unit < num_units; unit += config.rank_step) {
    const uint8_t* a = entry.a + segment.expert * entry.a_expert_bytes +
                       static_cast<int64_t>(unit) * p.layout.unit_bytes;
    HalfSums sum;
    if (segment.count > kHalfRows) {
      add_blocks<2>(sum, p, a, x, stride);
    } else {
      add_blocks<1>(sum, p, a, x, stride);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int columns = min(segment.count - h * kHalfRows, kHalfRows);
      if (columns <= 0) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int rank_row = lane / 4 + i / 2 * 8;
        const int column = lane % 4 * 2 + i % 2;
        sums[warp][column * kUnitRows + rank_row] = sum.value[h][i];
      }
      cluster_arrive();
      cluster_wait();
      if (rank_in_cluster == 0) {
        for (int i = threadIdx.x; i < columns * kUnitRows; i += blockDim.x) {
          const int rank = unit * kUnitRows + i % kUnitRows;
          float total = 0.0f;
          for (int block = 0; block < config.cluster; ++block) {
            const float* from = cluster.map_shared_rank(&sums[0][0], block);
            for (int w = 0; w < num_warps; ++w) total += from[w * kUnitRows * kHalfRows + i];
          }
          const int64_t pair = segment.begin + h * kHalfRows + i / kUnitRows;
          p.s[pair * p.s_stride + rank] = __float2bfloat16_rn(total * entry.scale[rank]);
        }
      }
      cluster_arrive();
      cluster_wait();
    }
  }
}

void launch_lora_shrink(const LoraShrinkConfig& config, const LoraShrinkParams& params,
                        int max_segments, cudaStream_t stream) {
  const LaunchShape shape = {.grid = dim3(max_segments * config.cluster, config.rank_step),
                             .block = dim3(config.num_warps * kWarpSize),
                             .cluster = config.cluster};
  launch(lora_shrink_kernel, shape, stream, params, config);
}

}  // namespace medley::cuda
