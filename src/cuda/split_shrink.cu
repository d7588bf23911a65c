#include "cuda/launch.h"
#include "cuda/split_lora_kernel.h"
#include "cuda/split_tile.cuh"
#include "cuda/unit_sum.cuh"

namespace medley::cuda {
namespace {

// Blocks of 32 columns that a warp has under way together.
constexpr int kColumnBlocks = 3;

// What a lane reads: its 16 bytes of every block of one unit of A, and of the rows of x.
struct LaneSource {
  const uint8_t* a;
  const __nv_bfloat16* x[2];  // at this lane's first column of a block
};

template <int kHalves>
__device__ __forceinline__ void add_block(UnitSum<2>& sum, uint4 low, uint4 high,
                                          const uint4 (&x)[kHalves]) {
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    add_bf16_block(sum.value[h], low, high, x[h]);
  }
}

// Adds the blocks first, first + step, ... of `p.num_blocks`.
template <bool kEvenK, int kHalves>
__device__ __forceinline__ void add_columns(UnitSum<2>& sum, const SplitShrinkParams& p,
                                            const LaneSource& source, int first, int step) {
  const int lane_column = threadIdx.x % 4 * 8;
  const int steps = kEvenK ? p.num_blocks / step : (p.num_blocks + step - 1) / step;
  if constexpr (kEvenK) {
#pragma unroll kColumnBlocks
    for (int i = 0; i < steps; ++i) {
      const int block = first + i * step;
      const uint8_t* a = source.a + static_cast<int64_t>(block) * 1024;
      const uint4 low = __ldg(reinterpret_cast<const uint4*>(a));
      const uint4 high = __ldg(reinterpret_cast<const uint4*>(a + 512));
      uint4 x[kHalves];
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        x[h] = __ldcg(reinterpret_cast<const uint4*>(source.x[h] + block * 32));
      }
      add_block<kHalves>(sum, low, high, x);
    }
  } else {
    for (int i = 0; i < steps; i += kColumnBlocks) {
      uint4 low[kColumnBlocks], high[kColumnBlocks], x[kColumnBlocks][kHalves];
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) {
        const int block = first + (i + j) * step;
        const bool inside = block < p.num_blocks;
        const uint8_t* a = source.a + static_cast<int64_t>(block) * 1024;
        low[j] = inside ? __ldg(reinterpret_cast<const uint4*>(a)) : uint4{};
        high[j] = inside ? __ldg(reinterpret_cast<const uint4*>(a + 512)) : uint4{};
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          x[j][h] = block * 32 + lane_column < p.in_size
                        ? __ldcg(reinterpret_cast<const uint4*>(source.x[h] + block * 32))
                        : uint4{};
        }
      }
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) add_block<kHalves>(sum, low[j], high[j], x[j]);
    }
  }
}

}  // namespace

template <bool kAtomic, bool kEvenK>
__global__ void __launch_bounds__(kMaxSplitWarps* kWarpSize)
    split_shrink_kernel(const __grid_constant__ SplitShrinkParams p,
                        const __grid_constant__ SplitShrinkConfig config, int max_segments) {
  __shared__ float sums[kMaxSplitWarps][kUnitRows * kHalfRows];
  wait_for_predecessor();
  launch_dependents();
  const int split = blockIdx.x % config.num_splits;
  const GroupedTile tile =
      grouped_tile(blockIdx.x / config.num_splits, max_segments, config.rank_step, config.group);
  // Read together: entries past the count exist, whatever they hold.
  const int num_segments = __ldcg(p.routing.num_segments);
  const RouteSegment segment = p.routing.segments[tile.m];
  if (tile.m >= num_segments) return;
  const LoraEntry entry = p.lora[segment.slot];
  const int num_units = entry.num_a * entry.rank / kUnitRows;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int first = split * config.num_warps + warp;
  const int step = config.num_splits * config.num_warps;

  LaneSource source;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int pair = segment.begin + min(h * kHalfRows + lane / 4, segment.count - 1);
    const int64_t row = p.x_by_row ? __ldcg(p.routing.row_of_pair + pair) : pair;
    source.x[h] = p.x + row * p.in_size + lane % 4 * 8;
  }
  for (int unit = tile.n; unit < num_units; unit += config.rank_step) {
    source.a = entry.a + segment.expert * entry.a_expert_bytes +
               static_cast<int64_t>(unit) * p.num_blocks * 1024 + lane * 16;
    UnitSum<2> sum;
    if (segment.count > kHalfRows) {
      add_columns<kEvenK, 2>(sum, p, source, first, step);
    } else {
      add_columns<kEvenK, 1>(sum, p, source, first, step);
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
        float total = 0.0f;
        for (int w = 0; w < config.num_warps; ++w) total += sums[w][i];
        const int64_t pair = segment.begin + h * kHalfRows + i / kUnitRows;
        float* to = p.sums.values + pair * kSplitStride + unit * kUnitRows + i % kUnitRows;
        if constexpr (kAtomic) {
          atomicAdd(to, total);
        } else {
          to[split * p.sums.split_stride] = total;
        }
      }
      __syncthreads();
    }
  }
}

void launch_split_shrink(const SplitShrinkConfig& config, const SplitShrinkParams& params,
                         int max_pairs, cudaStream_t stream) {
  const LaunchShape shape = {.grid = dim3(max_pairs * config.rank_step * config.num_splits),
                             .block = dim3(config.num_warps * kWarpSize)};
  const bool atomic = config.split_k == SplitK::kAtomic;
  const auto kernel =
      atomic
          ? (config.even_k ? split_shrink_kernel<true, true> : split_shrink_kernel<true, false>)
          : (config.even_k ? split_shrink_kernel<false, true> : split_shrink_kernel<false, false>);
  launch(kernel, shape, stream, params, config, max_pairs);
}

}  // namespace medley::cuda
