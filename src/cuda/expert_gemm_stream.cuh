#pragma once

#include "cuda/expert_gemm_kernel.h"
#include "cuda/primitives.cuh"

// How the warps of an expert product get what they multiply: their weights, what to copy next and
// the ring it lands in; and a tile's activations.

namespace medley::cuda {

// The first tiles are kept in shared memory.
inline constexpr int kTableTiles = kWarpSize;

// Routing is read through L2: it may be older than this kernel's start by less than a wait.
__device__ __forceinline__ RouteTile load_tile_entry(const ExpertGemmParams& p, int tile_idx) {
  const auto* words = reinterpret_cast<const int32_t*>(p.routing.tiles + tile_idx);
  return {.expert = __ldcg(words),
          .begin = __ldcg(words + 1),
          .count = __ldcg(words + 2),
          .segment_begin = __ldcg(words + 3),
          .segment_count = __ldcg(words + 4)};
}

__device__ __forceinline__ RouteTile tile_entry(const ExpertGemmParams& p, const RouteTile* table,
                                                int tile_idx) {
  return tile_idx < kTableTiles ? table[tile_idx] : load_tile_entry(p, tile_idx);
}

// The one or two tiles whose activations, of up to kTileRows rows together, are in shared memory at
// a time. Two tiles spare the warps a barrier in between.
struct TileGroup {
  RouteTile tiles[2];
  int32_t first_unit[2];        // of all units
  int32_t first_row[2];         // in shared memory
  int32_t out_rows[kTileRows];  // by row in shared memory
  int num_tiles;
  int end;  // the block's units of the group end here
};

// Called by a warp.
__device__ __forceinline__ void issue_copy(uint32_t slot, const uint8_t* from, int bytes,
                                           uint32_t barrier) {
  if (threadIdx.x % kWarpSize != 0) return;
  barrier_expect(barrier, bytes);
  bulk_copy_once(slot, from, bytes, barrier);
}

// A warp's place in the stream of copies it will consume: units first + warp, first + warp +
// num_warps, ... of the block's share. All lanes hold the same values; lane 0 issues.
struct Producer {
  const ExpertGemmParams& p;
  const RouteTile* table;  // the first kTableTiles tiles
  int units_left;          // of the block's share, from this unit on
  int step;
  int stages_left = 0;
  int tile_idx;
  int unit_in_matrix;
  const uint8_t* source = nullptr;

  __device__ Producer(const ExpertGemmParams& params, const RouteTile* tile_table, int2 share,
                      int warp, int num_warps)
      : p(params), table(tile_table), units_left(share.y - share.x - warp), step(num_warps) {
    if (units_left <= 0) return;
    const int first = share.x + warp;
    tile_idx = first / p.layout.num_units;
    unit_in_matrix = first - tile_idx * p.layout.num_units;
    open_unit();
  }

  __device__ void open_unit() {
    const int expert = tile_entry(p, table, tile_idx).expert;
    source = p.weights + (static_cast<int64_t>(expert) * p.layout.num_units + unit_in_matrix) *
                             p.layout.unit_bytes;
    stages_left = p.layout.num_stages;
  }

  __device__ __forceinline__ void issue(uint32_t slot, uint32_t barrier) {
    if (units_left <= 0) return;
    issue_copy(slot, source, p.layout.stage_bytes, barrier);
    source += p.layout.stage_bytes;
    if (--stages_left > 0) return;
    units_left -= step;
    if (units_left <= 0) return;
    unit_in_matrix += step;
    while (unit_in_matrix >= p.layout.num_units) {
      unit_in_matrix -= p.layout.num_units;
      ++tile_idx;
    }
    open_unit();
  }
};

// A ring of slots that one warp fills and drains.
struct Ring {
  uint32_t slots;
  uint32_t barriers;
  int slot_bytes;
  int slot = 0;
  uint32_t parity = 0;

  __device__ uint32_t address(int at) const { return slots + at * slot_bytes; }
  __device__ uint32_t barrier(int at) const { return barriers + at * 8; }
  __device__ uint32_t wait() const {
    barrier_wait(barrier(slot), parity);
    return address(slot);
  }
  __device__ void advance() {
    if (++slot == kRingSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Eight activations as kFormat's weights meet them: kMxfp4's are times 2^kActivationShift.
template <StreamFormat kFormat>
__device__ __forceinline__ uint4 shifted(uint4 x) {
  if constexpr (kFormat == StreamFormat::kMxfp4) {
    const __nv_bfloat162 shift = __float2bfloat162_rn(ldexpf(1.0f, kActivationShift));
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(&x);
#pragma unroll
    for (int k = 0; k < 4; ++k) pairs[k] = __hmul2(pairs[k], shift);
  }
  return x;
}

// A piece of an activation row on its way to shared memory, all its loads under way together. A
// group's pieces are dealt out among warps.
struct RowPiece {
  static constexpr int kLoads = kRowPieceBytes / (16 * kWarpSize);
  uint4 values[kLoads];
  int place = 0;  // row in shared memory
  int pair = 0;
  int first = 0;  // vector of 8 values

  __device__ static int count(const ExpertGemmConfig& config, const TileGroup& group) {
    const int rows = group.tiles[0].count + (group.num_tiles == 2 ? group.tiles[1].count : 0);
    return rows * config.row_pieces;
  }

  template <GemmRole kRole, class RowOfPair>
  __device__ void load(const ExpertGemmParams& p, const ExpertGemmConfig& config,
                       const TileGroup& group, int item, const RowOfPair& row_of_pair) {
    const int row = item / config.row_pieces;
    const int first_count = group.tiles[0].count;
    const bool second = row >= first_count;
    const int column = second ? row - first_count : row;
    pair = group.tiles[second].begin + column;
    place = group.first_row[second] + column;
    first = (item - row * config.row_pieces) * kLoads * kWarpSize + threadIdx.x % kWarpSize;
    const int64_t from = kRole == GemmRole::kDown ? pair : row_of_pair(pair);
    const auto* source = reinterpret_cast<const uint4*>(p.x + from * p.in_size);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int v = first + j * kWarpSize;
      if (v < p.in_size / 8) values[j] = __ldcg(source + v);
    }
  }

  template <StreamFormat kFormat>
  __device__ void store(const ExpertGemmParams& p, TileGroup& group, uint8_t* x, int row_stride) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int v = first + j * kWarpSize;
      if (v >= p.in_size / 8) continue;
      values[j] = shifted<kFormat>(values[j]);
      *reinterpret_cast<uint4*>(x + place * row_stride + v * 16) = values[j];
    }
    if (first == 0) group.out_rows[place] = pair;
  }
};

}  // namespace medley::cuda
