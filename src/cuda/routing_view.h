#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace medley::cuda {

// Rows of one expert that a matrix kernel takes at once.
inline constexpr int kTileRows = 16;

// A run of at most kTileRows consecutive pairs of one expert.
struct RouteTile {
  int32_t expert;
  int32_t begin;  // first pair
  int32_t count;
  int32_t segment_begin;  // its segments, in order of pairs
  int32_t segment_count;
};

// The pairs of a tile that have one adapter. Pairs of the base model are in no segment.
struct RouteSegment {
  int32_t expert;
  int32_t slot;
  int32_t begin;
  int32_t count;
};

// The shrinks of one product's adapters, shared out while it runs: blocks take them one by one and
// say which are done (expert_shrink.cuh). The kernel that routes leaves all of it zero, so that a
// routing serves each product once.
struct ShrinkQueue {
  uint32_t* taken = nullptr;  // (1)
  uint32_t* done = nullptr;   // (segments) shares of the segment's shrink
};

inline constexpr int32_t kNoExpert = -2;

// A step's (row, choice) pairs sorted by (expert, adapter slot, row), base rows first within an
// expert. All pointers are device memory; the counts are written by the kernel that routes.
//
//   pairs      | e0: base base a3 a3 a7 | e2: a1 a3 | ...
//   tiles      [------------------------][-----------]
//   segments             [-----][--]      [--][--]
struct RoutingView {
  int32_t* num_tiles = nullptr;
  int32_t* num_segments = nullptr;
  RouteTile* tiles = nullptr;
  RouteSegment* segments = nullptr;
  int32_t* row_of_pair = nullptr;       // (pairs)
  int32_t* pair_of_choice = nullptr;    // (rows, k)
  float* weight_of_choice = nullptr;    // (rows, k)
  int32_t* expert_of_choice = nullptr;  // (rows, k)
  uint32_t* arrivals = nullptr;         // (1) zero between kernels
  // Of a step of one row, whose products start before what they stand on has ended
  // (expert_gemm_row.cu). The kernel that routes resets all three, values to kNotThere.
  int32_t* row_experts = nullptr;  // (pairs) ascending, or all kNoExpert
  __nv_bfloat16* row_h = nullptr;  // (pairs, inner_size) gate_up's
  int32_t inner_size = 0;
  uint32_t* units_done = nullptr;  // (pairs) units of gate_up of which it is there, or about to be
  ShrinkQueue gate_up_shrink;
  ShrinkQueue down_shrink;
};

}  // namespace medley::cuda
