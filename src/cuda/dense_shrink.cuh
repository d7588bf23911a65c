#pragma once

#include "cuda/dense_gemm_kernel.h"
#include "cuda/there.cuh"
#include "cuda/unit_sum.cuh"

// LoRA's first half inside dense_gemm: s[pair] = scale * (A x), rounded to bfloat16.
//
// A unit of 16 ranks of one adapter's rows is cut into shares, one for each split of the columns.
// A few warps of each block take shares from a queue, while the block's other warps multiply.
// Whoever has taken a unit's last share waits for the sums of the others, adds them in order and
// writes s. Those were taken before it, by warps that run: of all shares in work the first one
// never waits, so all of them end, however few of the grid's blocks run at a time.
//
// Nothing says that a sum or an s is there but its own bits: what is read is kNotThere until it has
// been written. A sum is put back to that by its only reader. s has two places, which launches use
// in turn; each puts back what the one before has left.

namespace medley::cuda {

inline constexpr int kPieceRanks = 8;  // that are put back together
inline constexpr int kBlockBytesOfA = block_bytes(StreamFormat::kBF16);
inline constexpr int kShrinkBarrier = 1;  // of the shrink warps (named_barrier)

// An adapter's rows in the tile, as a shrink sees them.
struct ShrinkSegment {
  const uint8_t* a;
  const float* scale;
  int32_t end_unit;  // its units of 16 ranks end here in the list of all segments' units
  int32_t begin;     // pair
  int32_t count;
};

// Lane 4 g + q has row g, columns 2 q and 2 q + 1; returned are row 2 q and 2 q + 1 of column g.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t v) {
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(v));
  return v;
}

__device__ __forceinline__ __nv_bfloat16* place_of_turn(const DenseGemmParams& p, int turn) {
  return p.shrink.s + static_cast<int64_t>(turn) * kMaxInsideRows * p.s_stride;
}

// One share.
struct DenseShrinkShare {
  const ShrinkSegment& segment;
  int unit;   // of the segment's
  int split;  // of the columns
};

// Adds the share's blocks of 32 columns.
template <int kHalves>
__device__ __forceinline__ void add_share(const DenseGemmParams& p, const DenseShrinkShare& share,
                                          int splits, const int32_t* in_rows,
                                          UnitSum<kHalves>& sum) {
  constexpr int kUnroll = kHalves == 1 ? 5 : 3;
  const int lane = threadIdx.x % kWarpSize;
  const int num_blocks = p.layout.padded_cols / 32;
  const int begin = split_begin(num_blocks, splits, share.split);
  const int end = split_begin(num_blocks, splits, share.split + 1);
  const uint8_t* a = share.segment.a +
                     (static_cast<int64_t>(share.unit) * num_blocks + begin) * kBlockBytesOfA +
                     lane * 16;
  const __nv_bfloat16* x[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const int column = min(h * kHalfRows + lane / 4, share.segment.count - 1);
    x[h] = p.x + static_cast<int64_t>(in_rows[share.segment.begin + column]) * p.in_size +
           begin * 32 + lane % 4 * 8;
  }
  // Blocks of which this lane has columns of A, and of x.
  int blocks = end - begin;
  int x_blocks = (p.in_size - lane % 4 * 8 + 31) / 32 - begin;
#pragma unroll 1
  for (; blocks > 0; blocks -= kUnroll, x_blocks -= kUnroll) {
    uint4 low[kUnroll], high[kUnroll], v[kUnroll][kHalves];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      low[j] = high[j] = uint4{};
      if (j < blocks) {
        low[j] = __ldg(reinterpret_cast<const uint4*>(a + j * kBlockBytesOfA));
        high[j] = __ldg(reinterpret_cast<const uint4*>(a + j * kBlockBytesOfA + 512));
      }
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        v[j][h] = uint4{};
        if (j < min(blocks, x_blocks)) {
          v[j][h] = __ldcg(reinterpret_cast<const uint4*>(x[h] + j * 32));
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        add_bf16_block(sum.value[h], low[j], high[j], v[j][h]);
      }
    }
    a += kUnroll * kBlockBytesOfA;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) x[h] += kUnroll * 32;
  }
}

// Adds to `own`, the last split's, the sums of the splits before it, and takes those away.
__device__ __forceinline__ float4 join_splits(float* partial, int splits, const float (&own)[4]) {
  constexpr int kTogether = 8;
  float4 total = {};
#pragma unroll 1
  for (int left = splits - 1; left > 0; left -= kTogether) {
    uint4 v[kTogether];
    bool there = false;
    for (uint32_t polls = 0; !there; ++polls) {
      if (polls > kMaxPolls) __trap();
      there = true;
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        v[j] = uint4{};
        if (j < left) v[j] = load_relaxed_16(partial + j * kShrinkSumFloats);
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) there = there && is_there(v[j]);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (j >= left) break;
      store_relaxed_16(partial + j * kShrinkSumFloats,
                       {kNotThere, kNotThere, kNotThere, kNotThere});
      total.x += __uint_as_float(v[j].x);
      total.y += __uint_as_float(v[j].y);
      total.z += __uint_as_float(v[j].z);
      total.w += __uint_as_float(v[j].w);
    }
    partial += kTogether * kShrinkSumFloats;
  }
  return {total.x + own[0], total.y + own[1], total.z + own[2], total.w + own[3]};
}

template <int kHalves>
__device__ __forceinline__ void run_dense_share(const DenseGemmParams& p,
                                                const DenseShrinkShare& share, int splits,
                                                const int32_t* in_rows, uint32_t ticket,
                                                const int32_t& turn) {
  const int lane = threadIdx.x % kWarpSize;
  const ShrinkSegment& segment = share.segment;
  UnitSum<kHalves> sum;
  add_share<kHalves>(p, share, splits, in_rows, sum);
  if (p.shrink.delay_ns != 0) __nanosleep(p.shrink.delay_ns * (ticket % 3));
  const bool last = share.split == splits - 1;
  float2 scale = {};
  if (last) {
    const float* from = segment.scale + share.unit * kUnitRows + lane / 4;
    scale = {__ldg(from), __ldg(from + 8)};
  }
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const int64_t half = segment.begin + h * kHalfRows;  // of all those of segments
    float* partial = p.shrink.partial +
                     (half * kMaxShrinkUnits + share.unit) * splits * kShrinkSumFloats + lane * 4;
    const auto& own = sum.value[h];
    if (!last) {
      store_relaxed_16(partial + share.split * kShrinkSumFloats,
                       {__float_as_uint(own[0]), __float_as_uint(own[1]), __float_as_uint(own[2]),
                        __float_as_uint(own[3])});
      continue;
    }
    const float4 total = join_splits(partial, splits, own);
    __syncwarp();
    const uint32_t low = transpose_8x8(pack_bf16x2(total.x * scale.x, total.y * scale.x));
    const uint32_t high = transpose_8x8(pack_bf16x2(total.z * scale.y, total.w * scale.y));
    if (h * kHalfRows + lane / 4 < segment.count) {
      __nv_bfloat16* to = place_of_turn(p, turn) + (half + lane / 4) * p.s_stride +
                          share.unit * kUnitRows + lane % 4 * 2;
      store_relaxed_4(to, low);
      store_relaxed_4(to + 8, high);
    }
  }
}

// The tile's segments, in shared memory.
struct DenseShrinkList {
  ShrinkSegment* segments;
  const int32_t* in_rows;  // of the tile's pairs, which are the step's
  int num_segments;

  __device__ int num_units() const {
    return num_segments == 0 ? 0 : segments[num_segments - 1].end_unit;
  }
  // One warp, once: adds up the segments' units.
  __device__ void add_up() const {
    const int lane = threadIdx.x % kWarpSize;
    int before = 0;
    for (int base = 0; base < num_segments; base += kWarpSize) {
      int end = base + lane < num_segments ? segments[base + lane].end_unit : 0;
#pragma unroll
      for (int offset = 1; offset < kWarpSize; offset *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, end, offset);
        if (lane >= offset) end += other;
      }
      end += before;
      if (base + lane < num_segments) segments[base + lane].end_unit = end;
      before = __shfl_sync(0xffffffffu, end, kWarpSize - 1);
    }
  }
  __device__ int max_units() const {
    int most = 0;
    for (int i = threadIdx.x % kWarpSize; i < num_segments; i += kWarpSize) {
      most = max(most, units_of(i));
    }
    return __reduce_max_sync(0xffffffffu, most);
  }
  __device__ int units_of(int i) const {
    return segments[i].end_unit - (i == 0 ? 0 : segments[i - 1].end_unit);
  }
  // For all lanes of a warp: the split `split` of the unit `idx` of all.
  __device__ DenseShrinkShare share(int idx, int split) const {
    int found = 0;
    for (int i = threadIdx.x % kWarpSize; i < num_segments; i += kWarpSize) {
      found += segments[i].end_unit <= idx;
    }
    found = __reduce_add_sync(0xffffffffu, found);
    const int begin = found == 0 ? 0 : segments[found - 1].end_unit;
    return {.segment = segments[found], .unit = idx - begin, .split = split};
  }
};

// What the first shrink warp of a block finds for all of them.
struct DenseShrinkStart {
  DenseShrinkState state;
  uint32_t ticket;  // the first of as many as there are warps
};

// One of the shrink warps of a block, with the launch's queue.
struct DenseShrinker {
  const DenseGemmParams& p;
  const DenseShrinkList& list;
  int splits;
  int warp;  // of the block's num_warps that shrink
  int num_warps;
  DenseShrinkStart& start;  // the block's, in shared memory

  __device__ uint32_t grid_warps() const { return gridDim.x * num_warps; }
  __device__ uint32_t num_shares() const { return list.num_units() * splits; }
  __device__ __nv_bfloat16* s(int turn) const { return place_of_turn(p, turn); }

  // Before the kernel's wait. A comes into the L2 while the predecessor ends: the share that this
  // warp will probably take.
  __device__ void prepare() {
    named_barrier(kShrinkBarrier, num_warps * kWarpSize);
    const uint32_t expected = blockIdx.x * num_warps + warp;
    if (expected >= num_shares()) return;
    const DenseShrinkShare share = list.share(expected / splits, expected % splits);
    const int num_blocks = p.layout.padded_cols / 32;
    const int begin = split_begin(num_blocks, splits, share.split);
    const int end = split_begin(num_blocks, splits, share.split + 1);
    if (threadIdx.x % kWarpSize == 0 && end > begin) {
      bulk_prefetch(share.segment.a +
                        (static_cast<int64_t>(share.unit) * num_blocks + begin) * kBlockBytesOfA,
                    (end - begin) * kBlockBytesOfA);
    }
  }

  // Takes each warp's first share and works off shares until there are none. Calls `started` once
  // it knows where s will be.
  template <class Started>
  __device__ void run(const Started& started) {
    if (warp == 0 && threadIdx.x % kWarpSize == 0) {
      start.ticket = atomicAdd(p.shrink.taken, num_warps);
      const uint4 found = load_relaxed_16(p.shrink.state);
      start.state = {.first_ticket = found.x,
                     .turn = static_cast<int32_t>(found.y),
                     .rows_before = static_cast<int32_t>(found.z),
                     .pieces_before = static_cast<int32_t>(found.w)};
    }
    named_barrier(kShrinkBarrier, num_warps * kWarpSize);
    started(s(start.state.turn));
    uint32_t mine = start.ticket + warp - start.state.first_ticket;
#pragma unroll 1
    while (mine < num_shares()) {
      const uint32_t next = take();
      const DenseShrinkShare share = list.share(mine / splits, mine % splits);
      if (share.segment.count > kHalfRows) {
        run_dense_share<2>(p, share, splits, list.in_rows, mine, start.state.turn);
      } else {
        run_dense_share<1>(p, share, splits, list.in_rows, mine, start.state.turn);
      }
      mine = __shfl_sync(0xffffffffu, next, 0) - start.state.first_ticket;
    }
    // Each warp takes one share too many.
    if (mine >= num_shares() + grid_warps()) __trap();
  }

  // Puts back the other place's s, and lets the last block that has read the state change it:
  // `num_rows` of the tile.
  __device__ void leave(int num_rows) const {
    const int lane = threadIdx.x % kWarpSize;
    const DenseShrinkState& state = start.state;
    const int other = state.turn ^ 1;
    const uint32_t count = state.rows_before * state.pieces_before;
    for (uint32_t i = (blockIdx.x * num_warps + warp) * kWarpSize + lane; i < count;
         i += grid_warps() * kWarpSize) {
      store_relaxed_16(s(other) + static_cast<int64_t>(i / state.pieces_before) * p.s_stride +
                           i % state.pieces_before * kPieceRanks,
                       {kNotThere, kNotThere, kNotThere, kNotThere});
    }
    const int pieces = list.max_units() * kUnitRows / kPieceRanks;
    if (warp != 0 || lane != 0) return;
    __threadfence();
    if (atomicAdd(p.shrink.left, 1u) != gridDim.x - 1) return;
    *p.shrink.left = 0;
    *p.shrink.state = {.first_ticket = state.first_ticket + num_shares() + grid_warps(),
                       .turn = other,
                       .rows_before = num_rows,
                       .pieces_before = pieces};
  }

 private:
  __device__ uint32_t take() const {
    return threadIdx.x % kWarpSize == 0 ? atomicAdd(p.shrink.taken, 1u) : 0;
  }
};

// Waits for s of the segments first, first + step, ..., and copies it to `to` (tile's rows,
// kSharedRanks; shared memory) unless it is null. Thread `worker` of `num_workers`.
struct StageOfS {
  int first;
  int step;
  int worker;
  int num_workers;
  __nv_bfloat16* to;
};
__device__ __forceinline__ void wait_for_all_s(const DenseShrinkList& list, const __nv_bfloat16* s,
                                               int stride, const StageOfS& stage) {
  for (int i = stage.first; i < list.num_segments; i += stage.step) {
    const ShrinkSegment& segment = list.segments[i];
    const int pieces = list.units_of(i) * kUnitRows / kPieceRanks;
    for (int j = stage.worker; j < pieces * segment.count; j += stage.num_workers) {
      const int row = segment.begin + j / pieces;
      const int rank = j % pieces * kPieceRanks;
      const __nv_bfloat16* from = s + static_cast<int64_t>(row) * stride + rank;
      uint4 v = load_relaxed_16(from);
      for (uint32_t polls = 0; !is_there(v); ++polls) {
        if (polls > kMaxPolls) __trap();
        v = load_relaxed_16(from);
      }
      if (stage.to != nullptr) {
        *reinterpret_cast<uint4*>(stage.to + row * kSharedRanks + rank) = v;
      }
    }
  }
}

}  // namespace medley::cuda
