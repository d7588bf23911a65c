#pragma once

#include "cuda/expert_gemm_kernel.h"
#include "cuda/there.cuh"
#include "cuda/unit_sum.cuh"

// LoRA's first half inside expert_gemm: s[pair] = scale * (A x), rounded to bfloat16.
//
// A few warps of each block take shares of the segments' shrinks from a queue, work them off
// without waiting for anything, and count them as done, while the block's other warps multiply.
// Whoever needs a segment's s polls that count. A share that is not done is thus in the hands of
// warps that run and never wait, however few of the grid's blocks run at a time.

namespace medley::cuda {

inline constexpr int kShrinkThreads = kShrinkWarps * kWarpSize;
// Shared memory of a warp: its sums of a unit of 16 ranks, for half of a tile's rows.
inline constexpr int kShrinkSumFloats = kUnitRows * kHalfRows;
// Segments whose A of the next product is brought to the L2: some 10 MB at rank 32.
inline constexpr int kMaxNextSegments = 64;

// Whether activations may come while the kernel runs.
template <GemmRole kRole, bool kOneRow>
inline constexpr bool kPairByPair = kOneRow && kRole == GemmRole::kDown;

template <GemmRole kRole>
__device__ __forceinline__ const ShrinkQueue& shrink_queue(const ExpertGemmParams& p) {
  return kRole == GemmRole::kDown ? p.routing.down_shrink : p.routing.gate_up_shrink;
}

__device__ __forceinline__ int shrink_thread() { return threadIdx.x % kShrinkThreads; }
__device__ __forceinline__ void shrink_barrier() { named_barrier(/*id=*/2, kShrinkThreads); }

// Adds this warp's blocks of 32 columns of one unit, of [first, last); `a` and `x` are this lane's
// first bytes. is_coming: x is not there yet (RoutingView::row_h).
template <int kUnroll, bool kMayCome, int kHalves>
__device__ __forceinline__ void add_shrink_blocks(UnitSum<kHalves>& sum, const uint8_t* a,
                                                  const __nv_bfloat16* const (&x)[kHalves],
                                                  int first, int last, int in_size,
                                                  bool is_coming) {
  constexpr int step = kShrinkWarps;
  const int lane_column = threadIdx.x % 4 * 8;
  for (int base = first + shrink_thread() / kWarpSize; base < last; base += kUnroll * step) {
    uint4 low[kUnroll], high[kUnroll], v[kUnroll][kHalves];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const int block = base + j * step;
      low[j] = high[j] = uint4{};
      if (block < last) {
        low[j] = load_once(a + block * 1024);
        high[j] = load_once(a + block * 1024 + 512);
      }
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        v[j][h] = uint4{};
        if (block < last && block * 32 + lane_column < in_size) {
          const auto* from = reinterpret_cast<const uint4*>(x[h] + block * 32);
          v[j][h] = kMayCome ? load_relaxed_16(from) : __ldcg(from);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        if (kMayCome && is_coming) {
          v[j][h] = wait_until_there(v[j][h], x[h] + (base + j * step) * 32);
          __syncwarp();
        }
        add_bf16_block(sum.value[h], low[j], high[j], v[j][h]);
      }
    }
  }
}

// The units of 16 ranks first_unit, first_unit + kShrinkShares, ... of one segment, and of the
// ranges of columns the range-th.
struct ShrinkShare {
  const uint8_t* a;  // of the segment's expert
  const float* scale;
  int begin;  // pairs
  int count;
  int num_units;
  int first_unit;
  int segment_idx;
  int range;
  int row;  // of x: this lane's column of the first half

  template <GemmRole kRole, bool kOneRow>
  __device__ void load(const ExpertGemmParams& p, uint32_t taken) {
    int undivided = static_cast<int>(taken);
    range = 0;
    if constexpr (kOneRow) {
      undivided /= p.shrink_ranges;
      range = static_cast<int>(taken) - undivided * p.shrink_ranges;
    }
    segment_idx = undivided / kShrinkShares;
    first_unit = undivided % kShrinkShares;
    const int4 found = __ldcg(reinterpret_cast<const int4*>(p.routing.segments + segment_idx));
    const auto& [expert, slot, first_pair, num_pairs] = found;
    begin = first_pair;
    count = kOneRow ? 1 : num_pairs;
    row = kOneRow ? (kRole == GemmRole::kDown ? begin : 0)
                  : row_of<kRole>(p, /*column=*/threadIdx.x % kWarpSize / 4);
    const LoraEntry& entry = p.lora[slot];
    a = entry.a + expert * entry.a_expert_bytes;
    scale = entry.scale;
    num_units = entry.num_a * entry.rank / kUnitRows;
  }
  // Where a column's x lies; beyond the last, the last one's.
  template <GemmRole kRole>
  __device__ int row_of(const ExpertGemmParams& p, int column) const {
    const int pair = begin + min(column, count - 1);
    return kRole == GemmRole::kDown ? pair : __ldcg(p.routing.row_of_pair + pair);
  }
};

// What adds up to s, of a step of one row: (pairs, ranges, s_stride)
__device__ __forceinline__ float* range_sums(const ExpertGemmParams& p) {
  return reinterpret_cast<float*>(p.s);
}

// One unit: the warps' sums meet in `sums` and are added in the order of the warps.
template <GemmRole kRole, bool kOneRow, int kHalves, int kUnroll>
__device__ __forceinline__ void shrink_unit(const ExpertGemmParams& p, const ShrinkShare& share,
                                            const __nv_bfloat16* const (&x)[kHalves], int unit,
                                            float* sums) {
  const int lane = threadIdx.x % kWarpSize;
  const int warp = shrink_thread() / kWarpSize;
  const int num_blocks = (p.in_size + 31) / 32;
  const int unit_bytes = num_blocks * 1024;
  const uint8_t* a = share.a + static_cast<int64_t>(unit) * unit_bytes + lane * 16;
  // Of the rank whose sums this thread adds up.
  const float scale = share.scale[unit * kUnitRows + shrink_thread() % kUnitRows];
  UnitSum<kHalves> sum;
  add_shrink_blocks<kUnroll / kHalves, kPairByPair<kRole, kOneRow>>(
      sum, a, x, kOneRow ? num_blocks * share.range / p.shrink_ranges : 0,
      kOneRow ? num_blocks * (share.range + 1) / p.shrink_ranges : num_blocks, p.in_size,
      p.units_of_pair > 0);
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const int columns = kOneRow ? 1 : min(share.count - h * kHalfRows, kHalfRows);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int rank = lane / 4 + i / 2 * 8;
      const int column = lane % 4 * 2 + i % 2;
      sums[warp * kShrinkSumFloats + column * kUnitRows + rank] = sum.value[h][i];
    }
    shrink_barrier();
    for (int i = shrink_thread(); i < columns * kUnitRows; i += kShrinkThreads) {
      const int rank = unit * kUnitRows + i % kUnitRows;
      float total = 0.0f;
      for (int w = 0; w < kShrinkWarps; ++w) total += sums[w * kShrinkSumFloats + i];
      const int64_t pair = share.begin + h * kHalfRows + i / kUnitRows;
      total *= scale;
      if constexpr (kOneRow) {
        range_sums(p)[(pair * p.shrink_ranges + share.range) * p.s_stride + rank] = total;
      } else {
        p.s[pair * p.s_stride + rank] = __float2bfloat16_rn(total);
      }
    }
    shrink_barrier();
  }
}

template <GemmRole kRole, bool kOneRow, int kHalves, int kUnroll>
__device__ __forceinline__ void run_share(const ExpertGemmParams& p, const ShrinkShare& share,
                                          float* sums) {
  const int lane = threadIdx.x % kWarpSize;
  const __nv_bfloat16* x[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const int64_t row = h == 0 ? share.row : share.row_of<kRole>(p, h * kHalfRows + lane / 4);
    const __nv_bfloat16* rows = p.x;
    if (kPairByPair<kRole, kOneRow> && p.units_of_pair > 0) rows = p.routing.row_h;
    x[h] = rows + row * p.in_size + lane % 4 * 8;
  }
  for (int unit = share.first_unit; unit < share.num_units; unit += kShrinkShares) {
    shrink_unit<kRole, kOneRow, kHalves, kUnroll>(p, share, x, unit, sums);
  }
}

__device__ __forceinline__ uint32_t take_share(const ShrinkQueue& queue) {
  return atomicAdd(queue.taken, 1u);
}

// Asks for the A that the next product's shrinks read first.
__device__ __forceinline__ void prefetch_next_a(const ExpertGemmParams& p) {
  if (p.next_lora == nullptr || threadIdx.x % kWarpSize != 0) return;
  const int warp = shrink_thread() / kWarpSize;
  const int num_segments = min(__ldcg(p.routing.num_segments), kMaxNextSegments);
  for (auto i = static_cast<int>(blockIdx.x); i < num_segments; i += static_cast<int>(gridDim.x)) {
    const int4 found = __ldcg(reinterpret_cast<const int4*>(p.routing.segments + i));
    const LoraEntry& entry = p.next_lora[found.y];
    const int each =
        entry.num_a * entry.rank / kUnitRows * ((p.out_size + 31) / 32) * 1024 / kShrinkWarps;
    if (each > 0) bulk_prefetch(entry.a + found.x * entry.a_expert_bytes + warp * each, each);
  }
}

// All that the shrink warps do. kUnroll: halves of blocks of 32 columns that a warp has under way.
// kOneRow, of down: activations are there pair by pair, as the barriers at `ready` say.
template <GemmRole kRole, bool kOneRow, int kUnroll>
__device__ __forceinline__ void run_shrinks(const ExpertGemmParams& p, uint32_t ready = 0) {
  __shared__ float sums[kShrinkWarps * kShrinkSumFloats];
  __shared__ uint32_t taken;
  __shared__ uint32_t num_shares;
  // Of one row a share is the same for all threads, which have no registers to spare.
  __shared__ ShrinkShare of_all;
  ShrinkShare of_thread;
  ShrinkShare& share = *(kOneRow ? &of_all : &of_thread);
  const ShrinkQueue& queue = shrink_queue<kRole>(p);
  // Thread 0, then all.
  const auto take = [&](uint32_t next) {
    taken = next;
    if (kOneRow && next < num_shares) share.load<kRole, kOneRow>(p, next);
  };
  const auto taken_share = [&] {
    shrink_barrier();
    const uint32_t mine = taken;
    if (!kOneRow && mine < num_shares) share.load<kRole, kOneRow>(p, mine);
    return mine;
  };
  if constexpr (kPairByPair<kRole, kOneRow>) barrier_wait(ready, 0);  // routed by then
  if (!p.routed_before_predecessor) wait_for_predecessor();
  if (shrink_thread() == 0) {
    const uint32_t next = take_share(queue);
    num_shares = __ldcg(p.routing.num_segments) * kShrinkShares * p.shrink_ranges;
    // Each block takes one share too many: a queue with more was not reset by a router.
    if (next >= num_shares + gridDim.x) __trap();
    take(next);
  }
  uint32_t mine = taken_share();
  if constexpr (!kPairByPair<kRole, kOneRow>) {
    if (p.routed_before_predecessor) wait_for_predecessor();
    launch_dependents();
  }
  while (mine < num_shares) {
    uint32_t next = 0;
    if (shrink_thread() == 0) next = take_share(queue);
    if constexpr (kPairByPair<kRole, kOneRow>) {
      barrier_wait(ready + share.begin * sizeof(uint64_t), 0);
    }
    if (!kOneRow && share.count > kHalfRows) {
      run_share<kRole, kOneRow, kOneRow ? 1 : 2, kUnroll>(p, share, sums);
    } else {
      run_share<kRole, kOneRow, 1, kUnroll>(p, share, sums);
    }
    shrink_barrier();
    if (shrink_thread() == 0) {
      if (p.delay_ns != 0) __nanosleep(p.delay_ns * (mine % 3));
      __threadfence();
      atomicAdd(queue.done + share.segment_idx, 1u);
      take(next);
    }
    mine = taken_share();
  }
  if constexpr (kRole == GemmRole::kGateUp) prefetch_next_a(p);
}

// Returns once s is there, for the calling warp to read, of `count` (at most kWarpSize) segments.
// `seen` (shared memory) is set for the warps that ask later.
__device__ __forceinline__ void wait_for_shrinks(const uint32_t* done, int count, uint32_t ranges,
                                                 volatile int32_t* seen) {
  const int lane = threadIdx.x % kWarpSize;
  if (*seen == 0) {
    const uint32_t all = kShrinkShares * ranges;
    uint32_t shares = lane < count ? 0 : all;
    for (uint32_t polls = 0; shares < all; ++polls) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                   : "=r"(shares)
                   : "l"(done + lane)
                   : "memory");
      if (polls > kMaxPolls) __trap();
    }
    __syncwarp();
    if (lane == 0) *seen = 1;
  }
  __threadfence_block();
}

}  // namespace medley::cuda
