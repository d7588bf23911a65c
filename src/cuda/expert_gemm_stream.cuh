#pragma once

#include "cuda/expert_gemm_kernel.h"
#include "cuda/primitives.cuh"

// How expert_gemm.cu's warps get their weights: what to copy next, and the ring it lands in.

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

// The one or two tiles whose activations are in shared memory together: one of up to 16 rows, or
// two of up to 8. Two tiles spare the warps a barrier in between.
struct TileGroup {
  RouteTile tiles[2];
  int32_t out_rows[kTileRows];  // by place: a second tile's rows begin at half_rows
  int num_tiles;
};

// Called by a warp.
__device__ __forceinline__ void issue_copy(uint32_t slot, const uint8_t* from, int bytes,
                                           uint32_t barrier) {
  if (threadIdx.x % kWarpSize != 0) return;
  barrier_expect(barrier, bytes);
  bulk_copy(slot, from, bytes, barrier);
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
  int num_slots;
  int slot = 0;
  uint32_t parity = 0;

  __device__ uint32_t address() const { return slots + slot * slot_bytes; }
  __device__ uint32_t barrier() const { return barriers + slot * 8; }
  __device__ uint32_t wait() const {
    barrier_wait(barrier(), parity);
    return address();
  }
  __device__ void advance() {
    if (++slot == num_slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

}  // namespace medley::cuda
