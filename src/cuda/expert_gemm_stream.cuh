#pragma once

#include "cuda/expert_gemm_kernel.h"
#include "cuda/primitives.cuh"

// How expert_gemm.cu's warps get their weights: what to copy next, and the ring it lands in.

namespace medley::cuda {

// Routing is read through L2: it may be older than this kernel's start by less than a wait.
__device__ __forceinline__ RouteTile load_tile_entry(const ExpertGemmParams& p, int tile_idx) {
  const auto* words = reinterpret_cast<const int32_t*>(p.routing.tiles + tile_idx);
  return {.expert = __ldcg(words),
          .begin = __ldcg(words + 1),
          .count = __ldcg(words + 2),
          .segment_begin = __ldcg(words + 3),
          .segment_count = __ldcg(words + 4)};
}

// What a warp needs of a segment: its B for the tile's expert, and its columns of the tile.
struct SegmentInfo {
  const uint8_t* b;
  int32_t rank;
  int32_t num_a;
  int32_t begin;
  int32_t end;
};

__device__ __forceinline__ SegmentInfo load_segment(const ExpertGemmParams& p, int index,
                                                    int tile_begin) {
  const RouteSegment segment = p.routing.segments[index];
  const LoraEntry& entry = p.lora[segment.slot];
  return {.b = entry.b + segment.expert * entry.b_expert_bytes,
          .rank = entry.rank,
          .num_a = entry.num_a,
          .begin = segment.begin - tile_begin,
          .end = segment.begin - tile_begin + segment.count};
}

// The one or two tiles whose activations are in shared memory together: one of up to 16 rows, or
// two of up to 8. Two tiles spare the warps a barrier in between.
struct TileGroup {
  RouteTile tiles[2];
  SegmentInfo segments[2][kTileRows];  // with LoRA
  int32_t out_rows[kTileRows];         // by place: a second tile's rows begin at kHalfRows
  int first_tile;
  int num_tiles;
};

// A warp's place in the stream of copies it will consume: units first + warp, first + warp +
// num_warps, ... of the block's share, each its base stages and then the LoRA stages of its tile's
// segments. All lanes hold the same values; lane 0 issues.
template <bool kLora>
struct Producer {
  const ExpertGemmParams& p;
  const TileGroup& group;
  int units_left;  // of the block's share, from this unit on
  int step;
  int stages_left = 0;
  int segment = 0;  // of the tile
  int rank_block = 0;
  int tile_idx;
  int unit_in_matrix;
  const uint8_t* source = nullptr;
  RouteTile tile;

  __device__ Producer(const ExpertGemmParams& params, const TileGroup& tile_group, int first,
                      int last, int stride)
      : p(params), group(tile_group), units_left(last - first), step(stride) {
    if (units_left <= 0) return;
    tile_idx = first / p.layout.num_units;
    unit_in_matrix = first - tile_idx * p.layout.num_units;
    tile = load_tile_entry(p, tile_idx);
    open_unit();
  }

  __device__ void open_unit() {
    source = p.weights + (static_cast<int64_t>(tile.expert) * p.layout.num_units + unit_in_matrix) *
                             p.layout.unit_bytes;
    stages_left = p.layout.num_stages;
    segment = 0;
    rank_block = 0;
  }

  __device__ void next_unit() {
    units_left -= step;
    if (units_left <= 0) return;
    unit_in_matrix += step;
    if (unit_in_matrix >= p.layout.num_units) {
      do {
        unit_in_matrix -= p.layout.num_units;
        ++tile_idx;
      } while (unit_in_matrix >= p.layout.num_units);
      tile = load_tile_entry(p, tile_idx);
    }
    open_unit();
  }

  __device__ static void copy(uint32_t slot, const uint8_t* from, int bytes, uint32_t barrier) {
    if (threadIdx.x % kWarpSize == 0) {
      barrier_expect(barrier, bytes);
      bulk_copy(slot, from, bytes, barrier);
    }
  }

  // From the tiles in shared memory; a warp that runs ahead of them asks global memory.
  __device__ SegmentInfo segment_info() const {
    const int place = tile_idx - group.first_tile;
    if (place >= 0 && place < group.num_tiles) return group.segments[place][segment];
    return load_segment(p, tile.segment_begin + segment, /*tile_begin=*/0);
  }

  __device__ void skip_empty_segments() {
    while (segment < tile.segment_count && segment_info().rank == 0) ++segment;
  }

  __device__ void issue_lora(uint32_t slot, int slot_bytes, uint32_t barrier) {
    const SegmentInfo info = segment_info();
    const int blocks = info.rank / kRankBlock;
    const int count = min(blocks - rank_block, slot_bytes / kRankBlockBytes);
    copy(slot,
         info.b + (static_cast<int64_t>(unit_in_matrix) * blocks + rank_block) * kRankBlockBytes,
         count * kRankBlockBytes, barrier);
    rank_block += count;
    if (rank_block < blocks) return;
    rank_block = 0;
    ++segment;
    skip_empty_segments();
    if (segment == tile.segment_count) next_unit();
  }

  __device__ __forceinline__ void issue(uint32_t slot, int slot_bytes, uint32_t barrier) {
    if (units_left <= 0) return;
    if (kLora && stages_left == 0) return issue_lora(slot, slot_bytes, barrier);
    copy(slot, source, p.layout.stage_bytes, barrier);
    source += p.layout.stage_bytes;
    if (--stages_left > 0) return;
    if constexpr (kLora) {
      skip_empty_segments();
      if (segment < tile.segment_count) return;
    }
    next_unit();
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
