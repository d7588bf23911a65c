#pragma once

#include "cuda/primitives.cuh"
#include "cuda/route_kernel.h"
#include "cuda/there.cuh"

// Groups a step's (row, choice) pairs by (expert, slot, row): one block, all pairs in shared
// memory.

namespace medley::cuda {

inline constexpr int kPairWords = kMaxRoutedPairs / 32;

// A set of positions 0 .. kMaxRoutedPairs - 1.
struct PositionSet {
  uint32_t words[kPairWords];

  __device__ int count_below(int position) const {
    int count = 0;
    for (int w = 0; w < position / 32; ++w) count += __popc(words[w]);
    if (position % 32 != 0) count += __popc(words[position / 32] & ((1u << position % 32) - 1));
    return count;
  }
  // The first member after `position`, or `end`.
  __device__ int next(int position, int end) const {
    for (int w = (position + 1) / 32; w * 32 < end; ++w) {
      uint32_t word = words[w];
      if (w == (position + 1) / 32) word &= ~0u << (position + 1) % 32;
      if (word != 0) return min(end, w * 32 + __ffs(word) - 1);
    }
    return end;
  }
};

struct GroupShared {
  uint32_t keys[kMaxRoutedPairs];
  uint32_t sorted[kMaxRoutedPairs];
  int first_of_expert[kMaxRoutedExperts];
  PositionSet tiles;     // positions where a tile begins
  PositionSet runs;      // where (expert, slot) changes, or a tile begins
  PositionSet segments;  // the runs of an adapter
};

// key = expert, slot + 1, index of the choice
__device__ __forceinline__ uint32_t make_key(int expert, int slot, int choice) {
  return static_cast<uint32_t>(expert) << 22 | static_cast<uint32_t>(slot + 1) << 10 |
         static_cast<uint32_t>(choice);
}
__device__ __forceinline__ int expert_of(uint32_t key) { return key >> 22; }
__device__ __forceinline__ int slot_of(uint32_t key) {
  return static_cast<int>(key >> 10 & 0xfff) - 1;
}

// The segments from `first` on, every `stride`-th, have no share of their shrinks done.
__device__ __forceinline__ void reset_shrinks(const RoutingView& routing, int first, int num_pairs,
                                              int stride) {
  for (int i = first; i < num_pairs; i += stride) {
    routing.gate_up_shrink.done[i] = 0;
    routing.down_shrink.done[i] = 0;
  }
  if (first != 0) return;
  *routing.gate_up_shrink.taken = 0;
  *routing.down_shrink.taken = 0;
}

// A cluster of its own: what a step of one row hands on early is not there
// (RoutingView::row_experts and what follows). Whoever looks for it starts after that.
__device__ inline void reset_row(const RouteParams& p) {
  wait_for_predecessor();
  const RoutingView& routing = p.routing;
  const auto thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const auto num_threads = static_cast<int>(gridDim.x * blockDim.x);
  if (thread < p.experts_per_token) {
    const bool has_row = *p.norm.num_rows > 0;
    store_relaxed_4(routing.row_experts + thread,
                    has_row ? kNotThere : static_cast<uint32_t>(kNoExpert));
    routing.units_done[thread] = 0;
  }
  auto* words = reinterpret_cast<uint32_t*>(routing.row_h);
  for (int i = thread; i < p.experts_per_token * routing.inner_size / 2; i += num_threads) {
    words[i] = kNotThere;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  launch_dependents();
}

// For publish: one of row_experts, by the warp that will write them. Read ahead of time.
__device__ __forceinline__ uint32_t load_published(const RouteParams& p) {
  if (!p.publishes || static_cast<int>(threadIdx.x) >= p.experts_per_token) return kNotThere;
  return load_relaxed_4(p.routing.row_experts + threadIdx.x);
}

// Lane i: the expert of choice i and its position, once the last row's have been reset.
__device__ __forceinline__ void publish(const RouteParams& p, int expert, int position,
                                        uint32_t published) {
  for (uint32_t polls = 0; __any_sync(0xffffffffu, published != kNotThere); ++polls) {
    if (polls > kMaxPolls) __trap();
    published = load_published(p);
  }
  if (static_cast<int>(threadIdx.x) < p.experts_per_token) {
    store_relaxed_4(p.routing.row_experts + position, expert);
  }
}

// The pairs of a step of one row, by one warp: lane i holds the expert of choice i. All are
// different, so each is a tile, and with an adapter a segment.
__device__ __forceinline__ void group_one_row(const RouteParams& p, int expert, int slot,
                                              uint32_t published) {
  const int lane = threadIdx.x % kWarpSize;
  const int k = p.experts_per_token;
  int position = 0;
#pragma unroll 4
  for (int j = 0; j < k; ++j) position += __shfl_sync(0xffffffffu, expert, j) < expert;
  // At once: the products wait for nothing else before they ask for weights.
  if (p.publishes) publish(p, expert, position, published);
  const bool has_adapter = slot >= 0;
  if (lane < k) {
    p.routing.pair_of_choice[lane] = position;
    p.routing.row_of_pair[position] = 0;
    p.routing.tiles[position] = {.expert = expert,
                                 .begin = position,
                                 .count = 1,
                                 .segment_begin = has_adapter ? position : 0,
                                 .segment_count = has_adapter};
    if (has_adapter) {
      p.routing.segments[position] = {
          .expert = expert, .slot = slot, .begin = position, .count = 1};
    }
  }
  reset_shrinks(p.routing, lane, k, kWarpSize);
  if (lane != 0) return;
  *p.routing.num_tiles = k;
  *p.routing.num_segments = has_adapter ? k : 0;
}

// Groups at most kWarpSize pairs, by one warp: lane i holds the key of choice i.
__device__ __forceinline__ void group_few_pairs(const RouteParams& p, uint32_t key, int num_pairs,
                                                uint32_t* sorted) {
  const int lane = threadIdx.x % kWarpSize;
  const bool active = lane < num_pairs;
  const uint32_t up_to_lane = (2u << lane) - 1;
  const uint32_t below_lane = up_to_lane >> 1;
  if (!active) key = ~0u;
  int position = 0;
#pragma unroll 4
  for (int j = 0; j < kWarpSize; ++j) position += __shfl_sync(0xffffffffu, key, j) < key;
  if (active) sorted[position] = key;
  if (active) {
    p.routing.pair_of_choice[lane] = position;
    p.routing.row_of_pair[position] = lane / p.experts_per_token;
  }
  __syncwarp();
  // From here on lane i stands for position i.
  key = active ? sorted[lane] : ~0u;
  const uint32_t before = __shfl_up_sync(0xffffffffu, key, 1);
  const int expert = expert_of(key);
  const int slot = slot_of(key);
  const bool begins_expert = active && (lane == 0 || expert_of(before) != expert);
  const uint32_t experts = __ballot_sync(0xffffffffu, begins_expert);
  const int first_of_expert = 31 - __clz(static_cast<int>(experts & up_to_lane));
  const bool tile = active && (lane - first_of_expert) % kTileRows == 0;
  const bool run = active && (tile || slot_of(before) != slot);
  const uint32_t tiles = __ballot_sync(0xffffffffu, tile);
  const uint32_t runs = __ballot_sync(0xffffffffu, run);
  const uint32_t segments = __ballot_sync(0xffffffffu, run && slot >= 0);
  const auto next = [&](uint32_t set) {
    const uint32_t later = set & ~up_to_lane;
    return later != 0 ? __ffs(static_cast<int>(later)) - 1 : num_pairs;
  };
  const int segment = __popc(segments & below_lane);
  if (run && slot >= 0) {
    p.routing.segments[segment] = {
        .expert = expert, .slot = slot, .begin = lane, .count = next(runs) - lane};
  }
  if (tile) {
    const int end = next(tiles);
    const uint32_t below_end = end == kWarpSize ? ~0u : (1u << end) - 1;
    p.routing.tiles[__popc(tiles & below_lane)] = {
        .expert = expert,
        .begin = lane,
        .count = end - lane,
        .segment_begin = segment,
        .segment_count = __popc(segments & below_end) - segment};
  }
  reset_shrinks(p.routing, lane, num_pairs, kWarpSize);
  if (lane != 0) return;
  *p.routing.num_tiles = __popc(tiles);
  *p.routing.num_segments = __popc(segments);
}

__device__ inline void group_pairs(const RouteParams& p, int num_rows, GroupShared& s) {
  const int k = p.experts_per_token;
  const int num_pairs = num_rows * k;
  for (int i = threadIdx.x; i < num_pairs; i += blockDim.x) {
    s.keys[i] = make_key(__ldcg(p.routing.expert_of_choice + i), p.adapter_of_row[i / k], i);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_pairs; i += blockDim.x) {
    const uint32_t key = s.keys[i];
    int position = 0;
#pragma unroll 8
    for (int j = 0; j < num_pairs; ++j) position += s.keys[j] < key;
    s.sorted[position] = key;
    p.routing.pair_of_choice[i] = position;
    p.routing.row_of_pair[position] = i / k;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_pairs; i += blockDim.x) {
    const int expert = expert_of(s.sorted[i]);
    if (i == 0 || expert_of(s.sorted[i - 1]) != expert) s.first_of_expert[expert] = i;
  }
  __syncthreads();
  const int padded = (num_pairs + kWarpSize - 1) / kWarpSize * kWarpSize;
  for (int i = threadIdx.x; i < padded; i += blockDim.x) {
    bool tile = false;
    bool run = false;
    bool segment = false;
    if (i < num_pairs) {
      const uint32_t key = s.sorted[i];
      tile = (i - s.first_of_expert[expert_of(key)]) % kTileRows == 0;
      run = tile || slot_of(s.sorted[i - 1]) != slot_of(key);
      segment = run && slot_of(key) >= 0;
    }
    const uint32_t tile_word = __ballot_sync(0xffffffffu, tile);
    const uint32_t run_word = __ballot_sync(0xffffffffu, run);
    const uint32_t segment_word = __ballot_sync(0xffffffffu, segment);
    if (i % kWarpSize == 0) {
      s.tiles.words[i / kWarpSize] = tile_word;
      s.runs.words[i / kWarpSize] = run_word;
      s.segments.words[i / kWarpSize] = segment_word;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_pairs; i += blockDim.x) {
    const uint32_t bit = 1u << i % 32;
    if ((s.runs.words[i / 32] & bit) == 0) continue;
    const uint32_t key = s.sorted[i];
    const int segment = s.segments.count_below(i);
    if ((s.segments.words[i / 32] & bit) != 0) {
      p.routing.segments[segment] = {.expert = expert_of(key),
                                     .slot = slot_of(key),
                                     .begin = i,
                                     .count = s.runs.next(i, num_pairs) - i};
    }
    if ((s.tiles.words[i / 32] & bit) != 0) {
      const int end = s.tiles.next(i, num_pairs);
      p.routing.tiles[s.tiles.count_below(i)] = {
          .expert = expert_of(key),
          .begin = i,
          .count = end - i,
          .segment_begin = segment,
          .segment_count = s.segments.count_below(end) - segment};
    }
  }
  reset_shrinks(p.routing, threadIdx.x, num_pairs, blockDim.x);
  if (threadIdx.x == 0) {
    *p.routing.num_tiles = s.tiles.count_below(num_pairs);
    *p.routing.num_segments = s.segments.count_below(num_pairs);
  }
}

}  // namespace medley::cuda
