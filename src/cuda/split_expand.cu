#include "cuda/launch.h"
#include "cuda/split_lora_kernel.h"
#include "cuda/split_tile.cuh"
#include "cuda/unit_sum.cuh"

namespace medley::cuda {
namespace {

constexpr int kStepBlocks = kExpandRanks / kRankBlock;

template <int kHalves>
struct TileSum {
  float value[kExpandUnits][kHalves][4] = {};
};

// Four ranks of one pair: partial sums added in order, scaled, rounded.
__device__ __forceinline__ uint2 load_s(const SplitExpandParams& p, const float* scale, int pair,
                                        int rank) {
  const float* from = p.sums.values + static_cast<int64_t>(pair) * kSplitStride + rank;
  float4 total = __ldcg(reinterpret_cast<const float4*>(from));
  for (int split = 1; split < p.num_partials; ++split) {
    const float4 more = __ldcg(reinterpret_cast<const float4*>(from + split * p.sums.split_stride));
    total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
  }
  const float4 by = __ldg(reinterpret_cast<const float4*>(scale + rank));
  return {pack_bf16x2(total.x * by.x, total.y * by.y), pack_bf16x2(total.z * by.z, total.w * by.w)};
}

// B s of kExpandUnits units from `unit` on, for the segment's pairs.
template <bool kPaired, bool kEvenK, int kHalves>
__device__ __forceinline__ void multiply(TileSum<kHalves>& sum, const SplitExpandParams& p,
                                         const RouteSegment& segment, const LoraEntry& entry,
                                         int unit) {
  const int lane = threadIdx.x % kWarpSize;
  const int blocks = entry.rank / kRankBlock;
  const bool two = kPaired && entry.num_a > 1;
  const uint8_t* b = entry.b + segment.expert * entry.b_expert_bytes + lane * 16;
#pragma unroll 1
  for (int step = 0; step < blocks; step += kStepBlocks) {
    uint4 weights[kExpandUnits][kStepBlocks];
#pragma unroll
    for (int u = 0; u < kExpandUnits; ++u) {
      const int64_t at = static_cast<int64_t>(min(unit + u, p.num_units - 1)) * blocks + step;
#pragma unroll
      for (int j = 0; j < kStepBlocks; ++j) {
        const auto* from = reinterpret_cast<const uint4*>(b + (at + j) * kRankBlockBytes);
        weights[u][j] = kEvenK || step + j < blocks ? __ldg(from) : uint4{};
      }
    }
#pragma unroll
    for (int j = 0; j < kStepBlocks; ++j) {
      if (!kEvenK && step + j >= blocks) continue;
      const int rank = (step + j) * kRankBlock + lane % 4 * 4;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int pair = segment.begin + min(h * kHalfRows + lane / 4, segment.count - 1);
        const uint2 s = load_s(p, entry.scale, pair, rank);
        if (!two) {
#pragma unroll
          for (int u = 0; u < kExpandUnits; ++u) {
            const uint4& w = weights[u][j];
            mma_16x8x16(sum.value[u][h], {w.x, w.y, w.z, w.w}, s.x, s.y, sum.value[u][h]);
          }
          continue;
        }
        // Rows 0-7 are gate's and take gate's s, rows 8-15 are up's.
        const uint2 up = load_s(p, entry.scale, pair, entry.rank + rank);
#pragma unroll
        for (int u = 0; u < kExpandUnits; ++u) {
          const uint4& w = weights[u][j];
          mma_16x8x16(sum.value[u][h], {w.x, 0u, w.z, 0u}, s.x, s.y, sum.value[u][h]);
          mma_16x8x16(sum.value[u][h], {0u, w.y, 0u, w.w}, up.x, up.y, sum.value[u][h]);
        }
      }
    }
  }
}

// Where a lane's sums of one unit and one pair go: rows of out, or -1.
struct OutRows {
  int row[2];
};

template <bool kPaired>
__device__ __forceinline__ OutRows out_rows(const SplitExpandParams& p, int unit) {
  const int lane = threadIdx.x % kWarpSize;
  if constexpr (kPaired) {
    const int row = unit * (kUnitRows / 2) + lane / 4;
    return row < p.row_limit ? OutRows{{row, p.row_limit + row}} : OutRows{{-1, -1}};
  }
  const int row = unit * kUnitRows + lane / 4;
  return {{row < p.row_limit ? row : -1, row + 8 < p.row_limit ? row + 8 : -1}};
}

template <bool kPaired, bool kFusedAdd, int kHalves>
__device__ __forceinline__ void write_tile(const TileSum<kHalves>& sum, const SplitExpandParams& p,
                                           const RouteSegment& segment, int unit) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = h * kHalfRows + lane % 4 * 2 + i;
      if (column >= segment.count) continue;
      __nv_bfloat16* out = p.out + static_cast<int64_t>(segment.begin + column) * p.out_stride;
      // All loads before the first store: the compiler must not wait for each alone.
      __nv_bfloat16 base[kExpandUnits][2] = {};
      if constexpr (kFusedAdd) {
#pragma unroll
        for (int u = 0; u < kExpandUnits; ++u) {
          const OutRows rows = out_rows<kPaired>(p, unit + u);
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            if (rows.row[k] >= 0) base[u][k] = __ldcg(out + rows.row[k]);
          }
        }
      }
#pragma unroll
      for (int u = 0; u < kExpandUnits; ++u) {
        const OutRows rows = out_rows<kPaired>(p, unit + u);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float value = sum.value[u][h][2 * k + i] + __bfloat162float(base[u][k]);
          if (rows.row[k] >= 0) out[rows.row[k]] = __float2bfloat16_rn(value);
        }
      }
    }
  }
}

// The units of this warp: `config.repeats` times kExpandUnits, the block's warps side by side.
template <bool kPaired, bool kEvenK, bool kFusedAdd, int kHalves>
__device__ __forceinline__ void run_tiles(const SplitExpandParams& p,
                                          const SplitExpandConfig& config,
                                          const RouteSegment& segment, const LoraEntry& entry,
                                          int first_unit) {
#pragma unroll 1
  for (int i = 0; i < config.repeats; ++i) {
    const int unit = first_unit + i * config.num_warps * kExpandUnits;
    if (i > 0 && unit >= p.num_units) return;
    TileSum<kHalves> sum;
    multiply<kPaired, kEvenK>(sum, p, segment, entry, unit);
    if (i == 0) {
      wait_for_predecessor();
      launch_dependents();
    }
    write_tile<kPaired, kFusedAdd>(sum, p, segment, unit);
  }
}

}  // namespace

template <bool kPaired, bool kEvenK, bool kFusedAdd>
__global__ void __launch_bounds__(kMaxSplitWarps / 2 * kWarpSize)
    split_expand_kernel(const __grid_constant__ SplitExpandParams p,
                        const __grid_constant__ SplitExpandConfig config, int max_segments,
                        int num_tiles) {
  const GroupedTile tile = grouped_tile(blockIdx.x, max_segments, num_tiles, config.group);
  const int warp = threadIdx.x / kWarpSize;
  const int unit = (tile.n * config.repeats * config.num_warps + warp) * kExpandUnits;
  // Read together: entries past the count exist, whatever they hold.
  const int num_segments = __ldcg(p.routing.num_segments);
  const RouteSegment segment = p.routing.segments[tile.m];
  if (tile.m < num_segments && unit < p.num_units) {
    const LoraEntry entry = p.lora[segment.slot];
    if (kEvenK && entry.rank % kExpandRanks != 0) __trap();
    if (entry.rank > 0) {
      if (segment.count > kHalfRows) {
        return run_tiles<kPaired, kEvenK, kFusedAdd, 2>(p, config, segment, entry, unit);
      }
      return run_tiles<kPaired, kEvenK, kFusedAdd, 1>(p, config, segment, entry, unit);
    }
  }
  wait_for_predecessor();
  launch_dependents();
}

namespace {

template <bool kPaired, bool kEvenK>
void launch_form(const SplitExpandConfig& config, const SplitExpandParams& params, int max_pairs,
                 cudaStream_t stream) {
  const int tile_units = config.repeats * config.num_warps * kExpandUnits;
  const int num_tiles = (params.num_units + tile_units - 1) / tile_units;
  const LaunchShape shape = {.grid = dim3(max_pairs * num_tiles),
                             .block = dim3(config.num_warps * kWarpSize)};
  const auto kernel = config.fused_add ? split_expand_kernel<kPaired, kEvenK, true>
                                       : split_expand_kernel<kPaired, kEvenK, false>;
  launch(kernel, shape, stream, params, config, max_pairs, num_tiles);
}

}  // namespace

void launch_split_expand(const SplitExpandConfig& config, const SplitExpandParams& params,
                         int max_pairs, cudaStream_t stream) {
  if (params.paired) {
    return config.even_k ? launch_form<true, true>(config, params, max_pairs, stream)
                         : launch_form<true, false>(config, params, max_pairs, stream);
  }
  return config.even_k ? launch_form<false, true>(config, params, max_pairs, stream)
                       : launch_form<false, false>(config, params, max_pairs, stream);
}

}  // namespace medley::cuda
