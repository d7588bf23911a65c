#include "cuda/launch.h"
#include "cuda/primitives.cuh"
#include "cuda/route_group.cuh"
#include "cuda/route_many.h"

namespace medley::cuda {
namespace {

constexpr int kGroupBlocks = 8;
constexpr int kGroupThreads = 1024;
constexpr int kGroupWarps = kGroupThreads / kWarpSize;

struct GroupManyShared {
  int counts[kGroupWarps][kMaxRoutedExperts];  // a warp's pairs so far, or those of warps before
  int of_block[kMaxRoutedExperts];
  int first_place[kMaxRoutedExperts];  // of this block's pairs of an expert
  int first_of_expert[kMaxRoutedExperts + 1];
  int first_tile[kMaxRoutedExperts + 1];
  int warp_sums[kGroupWarps];
  int segments_of_block;
};

template <class T>
__device__ __forceinline__ T* in_block(T* pointer, int block) {
  T* mapped;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(pointer), "r"(block));
  return mapped;
}
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

__device__ __forceinline__ int warp_sum_before(int value, int lane) {
  int through = value;
#pragma unroll
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, through, offset);
    if (lane >= offset) through += other;
  }
  return through - value;
}

// The sum of `value` over the block's threads before this one.
__device__ int block_sum_before(GroupManyShared& s, int value) {
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int before = warp_sum_before(value, lane);
  __syncthreads();
  if (lane == kWarpSize - 1) s.warp_sums[warp] = before + value;
  __syncthreads();
  const int of_lower_warps = warp_sum_before(s.warp_sums[lane], lane);
  return before + __shfl_sync(0xffffffffu, of_lower_warps, warp);
}

// A pair in the order of (slot, row, choice), which the counting sort by expert keeps.
struct SortedPair {
  int row;
  int choice;  // row * k + j
  int expert;  // -1: none
  __device__ SortedPair(const GroupParams& p, int idx, int end) : row(0), choice(0), expert(-1) {
    if (idx >= end) return;
    row = p.row_by_slot[idx / p.experts_per_token];
    choice = row * p.experts_per_token + idx % p.experts_per_token;
    expert = __ldcg(p.routing.expert_of_choice + choice);
  }
};

// What a position of the sorted pairs begins.
struct PositionStart {
  int expert;
  int slot;  // -1: the base model
  int tile;
  int tile_end;
  bool begins_tile;
  bool begins_segment;
  __device__ PositionStart(const GroupParams& p, const GroupManyShared& s, int position) {
    const uint32_t key = __ldcg(p.keys + position);
    expert = static_cast<int>(key >> 16);
    slot = static_cast<int>(key & 0xffff) - 1;
    const int first = s.first_of_expert[expert];
    const int tile_in_expert = (position - first) / p.tile_rows;
    tile = s.first_tile[expert] + tile_in_expert;
    tile_end = min(first + (tile_in_expert + 1) * p.tile_rows, s.first_of_expert[expert + 1]);
    begins_tile = (position - first) % p.tile_rows == 0;
    begins_segment = slot >= 0 && (begins_tile || __ldcg(p.keys + position - 1) != key);
  }
};

__device__ void write_starts(const GroupParams& p, const PositionStart& start, int position,
                             int segments_before) {
  const uint32_t key = __ldcg(p.keys + position);
  if (start.begins_segment) {
    int count = 1;
    while (position + count < start.tile_end && __ldcg(p.keys + position + count) == key) ++count;
    p.routing.segments[segments_before] = {
        .expert = start.expert, .slot = start.slot, .begin = position, .count = count};
  }
  if (!start.begins_tile) return;
  int segments = start.begins_segment ? 1 : 0;
  uint32_t last = key;
  for (int i = position + 1; i < start.tile_end; ++i) {
    const uint32_t next = __ldcg(p.keys + i);
    segments += next != last;  // base pairs come first, so whatever follows has an adapter
    last = next;
  }
  p.routing.tiles[start.tile] = {.expert = start.expert,
                                 .begin = position,
                                 .count = start.tile_end - position,
                                 .segment_begin = segments_before,
                                 .segment_count = segments};
}

}  // namespace

__global__ void __launch_bounds__(kGroupThreads, 1)
    group_many_kernel(const __grid_constant__ GroupParams p) {
  __shared__ GroupManyShared s;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int block = blockIdx.x;
  for (int i = threadIdx.x; i < kGroupWarps * kMaxRoutedExperts; i += kGroupThreads) {
    s.counts[i / kMaxRoutedExperts][i % kMaxRoutedExperts] = 0;
  }
  wait_for_predecessor();
  launch_dependents();
  __syncthreads();
  // Each warp of the cluster takes a run of pairs, in order.
  const int num_pairs = *p.num_rows * p.experts_per_token;
  constexpr int kStep = kGroupBlocks * kGroupWarps * kWarpSize;
  const int share = (num_pairs + kStep - 1) / kStep * kWarpSize;
  const int begin = (block * kGroupWarps + warp) * share;
  const int end = min(num_pairs, begin + share);

  for (int base = begin; base < end; base += kWarpSize) {
    const SortedPair pair(p, base + lane, end);
    const uint32_t peers = __match_any_sync(0xffffffffu, pair.expert);
    if (pair.expert >= 0 && lane == __ffs(peers) - 1) {
      s.counts[warp][pair.expert] += __popc(peers);
    }
    __syncwarp();
  }
  __syncthreads();
  const int expert = threadIdx.x;
  if (expert < kMaxRoutedExperts) {
    int before = 0;
    for (int w = 0; w < kGroupWarps; ++w) {
      const int count = s.counts[w][expert];
      s.counts[w][expert] = before;
      before += count;
    }
    s.of_block[expert] = before;
  }
  cluster_sync();
  int of_expert = 0;
  int of_lower_blocks = 0;
  if (expert < kMaxRoutedExperts) {
    for (int b = 0; b < kGroupBlocks; ++b) {
      const int count = in_block(s.of_block, b)[expert];
      of_expert += count;
      if (b < block) of_lower_blocks += count;
    }
  }
  const int first = block_sum_before(s, of_expert);
  const int tiles = (of_expert + p.tile_rows - 1) / p.tile_rows;
  const int first_tile = block_sum_before(s, tiles);
  if (expert <= kMaxRoutedExperts) {
    s.first_of_expert[expert] = first;
    s.first_tile[expert] = first_tile;
    if (expert < kMaxRoutedExperts) s.first_place[expert] = first + of_lower_blocks;
  }
  __syncthreads();

  for (int base = begin; base < end; base += kWarpSize) {
    const SortedPair pair(p, base + lane, end);
    const uint32_t peers = __match_any_sync(0xffffffffu, pair.expert);
    int position = 0;
    if (pair.expert >= 0) {
      position = s.first_place[pair.expert] + s.counts[warp][pair.expert] +
                 __popc(peers & ((1u << lane) - 1));
    }
    __syncwarp();
    if (pair.expert < 0) continue;
    if (lane == __ffs(peers) - 1) s.counts[warp][pair.expert] += __popc(peers);
    p.routing.row_of_pair[position] = pair.row;
    p.routing.pair_of_choice[pair.choice] = position;
    p.keys[position] = static_cast<uint32_t>(pair.expert) << 16 |
                       static_cast<uint32_t>(p.adapter_of_row[pair.row] + 1);
  }
  cluster_sync();

  int segments = 0;
  for (int base = begin; base < end; base += kWarpSize) {
    const bool starts = base + lane < end && PositionStart(p, s, base + lane).begins_segment;
    segments += __popc(__ballot_sync(0xffffffffu, starts));
  }
  const int before_warp =
      __shfl_sync(0xffffffffu, block_sum_before(s, lane == 0 ? segments : 0), 0);
  if (threadIdx.x == kGroupThreads - kWarpSize) s.segments_of_block = before_warp + segments;
  cluster_sync();
  int place = before_warp;
  int all_segments = 0;
  for (int b = 0; b < kGroupBlocks; ++b) {
    const int count = *in_block(&s.segments_of_block, b);
    all_segments += count;
    if (b < block) place += count;
  }
  for (int base = begin; base < end; base += kWarpSize) {
    const int position = base + lane;
    const PositionStart start(p, s, min(position, end - 1));
    const uint32_t starts = __ballot_sync(0xffffffffu, position < end && start.begins_segment);
    if (position < end) {
      write_starts(p, start, position, place + __popc(starts & ((1u << lane) - 1)));
    }
    place += __popc(starts);
  }
  reset_shrinks(p.routing, block * kGroupThreads + threadIdx.x, num_pairs,
                kGroupBlocks * kGroupThreads);
  if (block == 0 && threadIdx.x == 0) {
    *p.routing.num_tiles = s.first_tile[kMaxRoutedExperts];
    *p.routing.num_segments = all_segments;
  }
  cluster_sync();  // what other blocks read of this one's shared memory
}

void launch_group_many(const GroupParams& params, cudaStream_t stream) {
  const LaunchShape shape = {
      .grid = dim3(kGroupBlocks), .block = dim3(kGroupThreads), .cluster = kGroupBlocks};
  launch(group_many_kernel, shape, stream, params);
}

}  // namespace medley::cuda
