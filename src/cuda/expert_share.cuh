#pragma once

#include "cuda/expert_gemm_stream.cuh"

// How the units of an expert product's tiles are dealt out among its blocks.

namespace medley::cuda {

// A unit's cost in 24ths of one of a base tile: more than kHalfRows rows take half as long again,
// and every adapter has its B.
template <bool kLora>
__device__ __forceinline__ int unit_cost(const RouteTile& tile) {
  return (tile.count > kHalfRows ? 36 : 24) + (kLora ? tile.segment_count : 0);
}

// What a tile costs besides its units. One of more than kHalfRows rows mostly is a group of its
// own, for which all warps wait for each other and, with adapters, for its list of rank blocks.
template <bool kLora>
__device__ __forceinline__ int group_cost(const RouteTile& tile) {
  return kLora && tile.count > kHalfRows ? 10 * 24 : 0;
}

// The block's share [first, last) of all units, equal by cost. Called by a whole warp; `mine`: tile
// `lane`.
template <bool kLora>
__device__ __forceinline__ int2 share_of_block(const ExpertGemmParams& p, int num_tiles,
                                               const RouteTile& mine) {
  const int num_units = p.layout.num_units;
  const int lane = threadIdx.x % kWarpSize;
  struct Cost {
    int unit = 0;   // 0: no tile
    int group = 0;  // before the first unit
    int all = 0;
  };
  const auto cost_of = [&](int tile_idx) -> Cost {
    if (tile_idx >= num_tiles) return {};
    const RouteTile tile = tile_idx == lane ? mine : load_tile_entry(p, tile_idx);
    const int unit = unit_cost<kLora>(tile);
    const int group = group_cost<kLora>(tile);
    return {unit, group, group + unit * num_units};
  };
  int total = 0;
  for (int i = lane; i < num_tiles; i += kWarpSize) total += cost_of(i).all;
  total = __reduce_add_sync(0xffffffffu, total);
  const auto num_blocks = static_cast<int>(gridDim.x);
  const int each_block = total / num_blocks;
  const int left = total % num_blocks;
  const auto cost_before = [&](int block) {
    return each_block * block + left * block / num_blocks;
  };
  const int begin = cost_before(static_cast<int>(blockIdx.x));
  const int end = cost_before(static_cast<int>(blockIdx.x) + 1);
  // A share begins with the first unit whose cost begins at or after `begin`; a tile's first unit
  // begins with the tile's.
  int first = num_tiles * num_units;
  int last = first;
  int before = 0;
  for (int base = 0; base < num_tiles; base += kWarpSize) {
    const int tile_idx = base + lane;
    const Cost cost = cost_of(tile_idx);
    int through = cost.all;
#pragma unroll
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, through, offset);
      if (lane >= offset) through += other;
    }
    const int start = before + through - cost.all;
    const auto find = [&](int at, int& unit_idx) {
      int unit = 0;
      if (at > start) unit = max(1, (at - start - cost.group + cost.unit - 1) / max(cost.unit, 1));
      if (cost.unit > 0 && unit < num_units) unit_idx = min(unit_idx, tile_idx * num_units + unit);
    };
    find(begin, first);
    find(end, last);
    before += __shfl_sync(0xffffffffu, through, kWarpSize - 1);
  }
  return {static_cast<int>(__reduce_min_sync(0xffffffffu, first)),
          static_cast<int>(__reduce_min_sync(0xffffffffu, last))};
}

}  // namespace medley::cuda
