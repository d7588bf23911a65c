#pragma once

#include "cuda/dense_gemm_stream.cuh"
#include "cuda/dense_shrink.cuh"
#include "cuda/unit_sum.cuh"

// LoRA's second half inside dense_gemm: B s, added to a unit's sums.

namespace medley::cuda {

// Rank blocks whose s is under way together.
constexpr int s_ahead(DenseRole role, int halves) {
  return halves == 1 || (halves == 2 && role != DenseRole::kGateUp) ? 2 : 1;
}

// Few columns: a warp that multiplies waits for the s that it needs, which is soonest. More: a warp
// that shrinks waits for all of the block's and copies it to shared memory.
constexpr bool waits_for_each_s(int halves, DenseLora lora) {
  return lora == DenseLora::kInside && halves <= 2;
}

// s of the tile's pairs: (pairs, stride), in global or shared memory.
struct PlaceOfS {
  const __nv_bfloat16* first;
  int stride;
};

// What the calling lane has of s: pair 8 half + lane / 4, ranks 4 (lane % 4) .. + 3 of each 16.
template <DenseRole kRole, int kHalves, DenseLora kLora>
struct LaneS {
  static constexpr int kAhead = s_ahead(kRole, kHalves);
  struct Values {
    uint2 first[kAhead];
    uint2 second[kRole == DenseRole::kGateUp ? kAhead : 1];  // of up, where it has an A of its own
  };

  const __nv_bfloat16* lane;  // of half 0
  int stride;

  // Asks for rank blocks [block, block + kAhead) of one segment.
  __device__ __forceinline__ void load(Values& v, const DenseSegment& segment, int part, int half,
                                       int block) const {
    const int rank = segment.rank_blocks * kRankBlock;
    const __nv_bfloat16* from = address(half) + part * rank + block * kRankBlock;
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      v.first[j] = uint2{};
      if (block + j >= segment.rank_blocks) continue;
      v.first[j] = read(from + j * kRankBlock);
      if constexpr (kRole == DenseRole::kGateUp) {
        v.second[j] = uint2{};
        if (segment.num_a > 1) v.second[j] = read(from + j * kRankBlock + rank);
      }
    }
  }
  // Returns once they are there.
  __device__ __forceinline__ void wait(Values& v, const DenseSegment& segment, int part, int half,
                                       int block) const {
    if constexpr (waits_for_each_s(kHalves, kLora)) {
      const int rank = segment.rank_blocks * kRankBlock;
      const __nv_bfloat16* from = address(half) + part * rank + block * kRankBlock;
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (block + j >= segment.rank_blocks) break;
        v.first[j] = wait_until_there(v.first[j], from + j * kRankBlock);
        if constexpr (kRole == DenseRole::kGateUp) {
          if (segment.num_a > 1)
            v.second[j] = wait_until_there(v.second[j], from + j * kRankBlock + rank);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ const __nv_bfloat16* address(int half) const {
    return lane + static_cast<int64_t>(half * kHalfRows) * stride;
  }
  static __device__ __forceinline__ uint2 read(const __nv_bfloat16* from) {
    if constexpr (kLora == DenseLora::kInside) return load_relaxed_8(from);
    return __ldcg(reinterpret_cast<const uint2*>(from));
  }
};

// The rank blocks of B in a slot of the ring: those of several segments, as far as whole ones fit
// behind the first (DenseProducer).
struct RankSlot {
  uint32_t data = 0;
  int taken = kSlotRankBlocks + 1;  // more than it holds: no slot is open

  // Where the next `blocks` are, for this lane.
  template <class Producer>
  __device__ __forceinline__ uint32_t next(int blocks, const DenseGemmParams& p, WeightRing& ring,
                                           Producer& producer) {
    if (taken + blocks > kSlotRankBlocks) {
      close(p, ring, producer);
      data = ring.wait() + threadIdx.x % kWarpSize * 16;
      taken = 0;
    }
    const uint32_t at = data + taken * kRankBlockBytes;
    taken += blocks;
    return at;
  }
  template <class Producer>
  __device__ __forceinline__ void close(const DenseGemmParams& p, WeightRing& ring,
                                        Producer& producer) {
    if (taken <= kSlotRankBlocks) ring.refill(p, producer);
  }
};

// Adds B s of the block's segments to a unit.
template <DenseRole kRole, int kHalves, DenseLora kLora, class Producer>
__device__ __forceinline__ void add_ranks(const DenseGemmParams& p, const DenseShare& share,
                                          const DenseSegments& segments, const PlaceOfS& place,
                                          int unit, UnitSum<kHalves>& sums, WeightRing& ring,
                                          Producer& producer) {
  using S = LaneS<kRole, kHalves, kLora>;
  const int lane = threadIdx.x % kWarpSize;
  const S s = {.lane = place.first + static_cast<int64_t>(lane / 4) * place.stride + lane % 4 * 4,
               .stride = place.stride};
  const int unit_part = (unit >= p.part_end[0]) + (unit >= p.part_end[1]);
  const auto part_of = [&](const DenseSegment& segment) {
    return kRole != DenseRole::kGateUp && segment.num_a > 1 ? unit_part : 0;
  };
  const auto has = [&](const DenseSegment& segment, int h) {
    const int column = h * kHalfRows + lane / 4;
    return column >= segment.begin && column < segment.end;
  };
  // Few columns: the first rank blocks of all segments come together, as each lane's columns have
  // one segment each.
  constexpr bool kTogether = kHalves <= 2;
  typename S::Values together[kTogether ? kHalves : 1] = {};
  if constexpr (kTogether) {
    int mine[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) mine[h] = -1;
    for (int i = share.rank_in_cluster; i < segments.count; i += share.cluster) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        if (has(segments.list[i], h)) mine[h] = i;
      }
    }
    const auto for_mine = [&](const auto& act) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        if (mine[h] < 0) continue;
        const DenseSegment& segment = segments.list[mine[h]];
        act(together[h], segment, part_of(segment), h, /*block=*/0);
      }
    };
    for_mine([&](auto&&... place_of) { s.load(place_of...); });
    for_mine([&](auto&&... place_of) { s.wait(place_of...); });
    __syncwarp();
  }
  RankSlot slot;
  DenseSegment next = {};
  if (share.rank_in_cluster < segments.count) next = segments.list[share.rank_in_cluster];
  for (int i = share.rank_in_cluster; i < segments.count; i += share.cluster) {
    const DenseSegment segment = next;
    if (i + share.cluster < segments.count) next = segments.list[i + share.cluster];
    const bool two = kRole == DenseRole::kGateUp && segment.num_a > 1;
    for (int done = 0; done < segment.rank_blocks; done += kSlotRankBlocks) {
      const int blocks = min(kSlotRankBlocks, segment.rank_blocks - done);
      const uint32_t data = slot.next(blocks, p, ring, producer);
      for (int block = 0; block < blocks; block += S::kAhead) {
        uint4 b[S::kAhead];
#pragma unroll
        for (int j = 0; j < S::kAhead; ++j) {
          if (block + j < blocks) b[j] = load_shared_16(data + (block + j) * kRankBlockBytes);
        }
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          if (segment.begin >= (h + 1) * kHalfRows || segment.end <= h * kHalfRows) {
            continue;
          }
          typename S::Values v = {};
          if (has(segment, h)) {
            if (kTogether && done + block == 0) {
              v = together[kTogether ? h : 0];
            } else {
              s.load(v, segment, part_of(segment), h, done + block);
              s.wait(v, segment, part_of(segment), h, done + block);
            }
          }
          __syncwarp();
#pragma unroll
          for (int j = 0; j < S::kAhead; ++j) {
            if (block + j >= blocks) break;
            const uint2& first = v.first[j];
            if (two) {
              const uint2& second = v.second[j];
              mma_16x8x16(sums.value[h], {b[j].x, 0u, b[j].z, 0u}, first.x, first.y, sums.value[h]);
              mma_16x8x16(sums.value[h], {0u, b[j].y, 0u, b[j].w}, second.x, second.y,
                          sums.value[h]);
            } else {
              mma_16x8x16(sums.value[h], {b[j].x, b[j].y, b[j].z, b[j].w}, first.x, first.y,
                          sums.value[h]);
            }
          }
        }
      }
    }
  }
  slot.close(p, ring, producer);
}

}  // namespace medley::cuda
