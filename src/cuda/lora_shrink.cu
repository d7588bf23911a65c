#include <algorithm>

#include "cuda/launch.h"
#include "cuda/lora_shrink_kernel.h"
#include "cuda/unit_sum.cuh"

namespace medley::cuda {
namespace {

// This warp's blocks of 32 columns: first, first + step, ...
struct Stride {
  int first = 0;
  int step = 0;
};

// Blocks of A that a warp has under way together; the first ones come before the kernel's wait.
constexpr int kTogether = 3;

struct BlocksOfA {
  uint4 low[kTogether];
  uint4 high[kTogether];

  // The blocks first, first + step, ... of `a`, this lane's first byte; zero past the end.
  __device__ void load(const uint8_t* a, int first, int step, int num_blocks) {
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int block = first + j * step;
      low[j] = high[j] = uint4{};
      if (block >= num_blocks) continue;
      low[j] = __ldg(reinterpret_cast<const uint4*>(a + block * 1024));
      high[j] = __ldg(reinterpret_cast<const uint4*>(a + block * 1024 + 512));
    }
  }
};

// Adds this warp's blocks of one unit, of which `blocks` holds the first.
template <int kHalves>
__device__ __forceinline__ void add_blocks(UnitSum<2>& sum, const LoraShrinkParams& p,
                                           const uint8_t* a, BlocksOfA& blocks,
                                           const __nv_bfloat16* const (&x)[2], Stride stride) {
  const int lane_column = threadIdx.x % 4 * 8;
  const int num_blocks = p.layout.padded_cols / 32;
  for (int base = stride.first; base < num_blocks; base += kTogether * stride.step) {
    if (base != stride.first) blocks.load(a, base, stride.step, num_blocks);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      uint4 v[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int col = (base + j * stride.step) * 32 + lane_column;
        v[j] = uint4{};
        if (col < p.in_size) v[j] = __ldcg(reinterpret_cast<const uint4*>(x[h] + col));
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        add_bf16_block(sum.value[h], blocks.low[j], blocks.high[j], v[j]);
      }
    }
  }
}

}  // namespace

__global__ void __maxnreg__(80)
    lora_shrink_kernel(const __grid_constant__ LoraShrinkParams p,
                       const __grid_constant__ LoraShrinkConfig config) {
  __shared__ float sums[kMaxShrinkWarps][kUnitRows * kHalfRows];
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int num_warps = config.num_warps;
  const Stride stride = {.first = warp, .step = num_warps};
  const int num_blocks = p.layout.padded_cols / 32;
  const int num_segments = *p.rows.num_segments;

  bool waited = false;
  for (int segment_idx = blockIdx.x; segment_idx < num_segments; segment_idx += gridDim.x) {
    // The step's rows, adapters and their A are older than the predecessor.
    const RouteSegment segment = p.rows.segments[segment_idx];
    const LoraEntry& entry = p.lora[segment.slot];
    const int num_units = entry.num_a * entry.rank / kUnitRows;
    const uint8_t* a = entry.a + segment.expert * entry.a_expert_bytes + lane * 16;
    const float* scale = entry.scale;
    const __nv_bfloat16* x[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int pair = segment.begin + min(h * kHalfRows + lane / 4, segment.count - 1);
      x[h] = p.x + static_cast<int64_t>(p.rows.row_of_pair[pair]) * p.in_size;
    }
    for (int unit = blockIdx.y; unit < num_units; unit += config.rank_step) {
      const uint8_t* a_of_unit = a + static_cast<int64_t>(unit) * p.layout.unit_bytes;
      BlocksOfA blocks;
      blocks.load(a_of_unit, stride.first, stride.step, num_blocks);
      if (!waited) {
        wait_for_predecessor();
        launch_dependents();
        waited = true;
      }
      UnitSum<2> sum;
      if (segment.count > kHalfRows) {
        add_blocks<2>(sum, p, a_of_unit, blocks, x, stride);
      } else {
        add_blocks<1>(sum, p, a_of_unit, blocks, x, stride);
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
        __syncthreads();
        for (int i = threadIdx.x; i < columns * kUnitRows; i += blockDim.x) {
          const int rank = unit * kUnitRows + i % kUnitRows;
          float total = 0.0f;
          for (int w = 0; w < num_warps; ++w) total += sums[w][i];
          const int64_t pair = segment.begin + h * kHalfRows + i / kUnitRows;
          p.s[pair * p.s_stride + rank] = __float2bfloat16_rn(total * scale[rank]);
        }
        __syncthreads();
      }
    }
  }
  if (waited) return;
  wait_for_predecessor();
  launch_dependents();
}

void launch_lora_shrink(const LoraShrinkConfig& config, const LoraShrinkParams& params,
                        int max_segments, cudaStream_t stream) {
  const LaunchShape shape = {
      .grid = dim3(std::min(max_segments, config.max_blocks), config.rank_step),
      .block = dim3(config.num_warps * kWarpSize)};
  launch(lora_shrink_kernel, shape, stream, params, config);
}

}  // namespace medley::cuda
