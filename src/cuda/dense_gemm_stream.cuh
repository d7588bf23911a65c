#pragma once

#include "cuda/dense_gemm_kernel.h"
#include "cuda/primitives.cuh"

// How dense_gemm.cuh's warps get weights and activations: what to copy next, and the rings.

namespace medley::cuda {

inline constexpr int kBlockBytes = block_bytes(StreamFormat::kBF16);
inline constexpr int kBlockCols = block_cols(StreamFormat::kBF16);
inline constexpr int kSlotRankBlocks = kWeightSlotBytes / kRankBlockBytes;

// Stores 16 bytes to another block of the cluster and counts them at a barrier beside them.
__device__ __forceinline__ void store_remote_16(uint32_t destination, const float4& v,
                                                uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(destination),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}
// The address of `local`, a place in this block's shared memory, in block `rank` of the cluster.
__device__ __forceinline__ uint32_t remote_address(uint32_t local, int rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  return remote;
}

// The rows of one adapter in a tile of rows: columns [begin, end) of the tile.
struct alignas(16) DenseSegment {
  int32_t rank_blocks;
  int32_t num_a;
  int32_t begin;
  int32_t end;
  const uint8_t* b;
};
struct DenseSegments {
  const DenseSegment* list;
  int count;
};

// What a block computes: units [first, last), blocks of 32 columns [begin, end), and of the
// segments every cluster-th, from its place in the cluster on.
struct DenseShare {
  int first;
  int last;
  int begin;
  int end;
  int rank_in_cluster;
  int cluster;
};

// The copies that a warp will consume, in order: for each of its units the stages of its columns,
// then with LoRA the rank blocks of the block's segments, in one slot those of several segments as
// far as whole ones fit behind the first. Lives in shared memory and is lane 0's
// alone, which spares the warp its registers.
template <bool kLora>
struct DenseProducer {
  DenseShare share;
  int step;     // units from one of the warp's to the next
  int unit;     // at or above share.last: done
  int at;       // block of 32 columns; at share.end: in the segments
  int segment;  // kLora, as those below
  int block;    // of 16 ranks
  DenseSegments segments;

  __device__ void open(const DenseShare& block_share, int first_unit, int unit_step) {
    share = block_share;
    unit = first_unit;
    step = unit_step;
    at = share.begin;
    segments = {};
  }
  __device__ bool in_base() const { return unit < share.last && at < share.end; }
  // To be called once, before the first issue() behind the first unit's base stages.
  __device__ void set_segments(const DenseSegments& all) {
    segments = all;
    if (unit < share.last && at >= share.end) open_segments();
  }

  __device__ __forceinline__ void issue(const DenseGemmParams& p, uint32_t slot, uint32_t barrier) {
    if (unit >= share.last) return;
    if (kLora && at >= share.end) return issue_ranks(slot, barrier);
    const int bytes = min(kChunkBlocks, share.end - at) * kBlockBytes;
    barrier_expect(barrier, bytes);
    bulk_copy_once(slot,
                   p.weights + static_cast<int64_t>(unit) * p.layout.unit_bytes + at * kBlockBytes,
                   bytes, barrier);
    at += kChunkBlocks;
    if (at < share.end) return;
    if constexpr (!kLora) {
      next_unit();
    } else if (segments.list != nullptr) {
      open_segments();
    }
  }

 private:
  __device__ void next_unit() {
    unit += step;
    at = share.begin;
  }
  __device__ void open_segments() {
    segment = share.rank_in_cluster - share.cluster;
    next_segment();
  }
  __device__ void next_segment() {
    block = 0;
    do {
      segment += share.cluster;
    } while (segment < segments.count && segments.list[segment].rank_blocks == 0);
    if (segment >= segments.count) next_unit();
  }
  __device__ void issue_ranks(uint32_t slot, uint32_t barrier) {
    int filled = 0;
    do {
      const DenseSegment& from = segments.list[segment];
      const int count = min(kSlotRankBlocks, from.rank_blocks - block);
      if (filled + count > kSlotRankBlocks) break;
      barrier_expect_more(barrier, count * kRankBlockBytes);
      bulk_copy(slot + filled * kRankBlockBytes,
                from.b + (static_cast<int64_t>(unit) * from.rank_blocks + block) * kRankBlockBytes,
                count * kRankBlockBytes, barrier);
      filled += count;
      block += count;
      if (block == from.rank_blocks) next_segment();
    } while (at >= share.end);
    barrier_arrive(barrier);
  }
};

// A place in a ring of slots, each with a barrier per filling.
struct RingPlace {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance(int num_slots) {
    if (++slot == num_slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// A ring of weights that one warp fills and drains.
struct WeightRing {
  const uint32_t slots;
  const uint32_t barriers;
  const int num_slots;
  RingPlace place = {};

  __device__ uint32_t address(int i) const { return slots + i * kWeightSlotBytes; }
  __device__ uint32_t barrier(int i) const { return barriers + i * 8; }
  __device__ uint32_t wait() const {
    barrier_wait(barrier(place.slot), place.parity);
    return address(place.slot);
  }
  // All lanes have read the slot: asks for the next copy into it.
  template <class Producer>
  __device__ __forceinline__ void refill(const DenseGemmParams& p, Producer& producer) {
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) producer.issue(p, address(place.slot), barrier(place.slot));
    place.advance(num_slots);
  }
};

// The block's ring of activations: one warp fills it, all others drain it.
struct ActivationRing {
  const uint32_t slots;
  const uint32_t full;
  const uint32_t empty;
  const int row_bytes;
  const int slot_bytes;
  const int num_slots;
  const int chunks;  // of a slot
  RingPlace place = {};

  __device__ uint32_t wait() const {
    barrier_wait(full + place.slot * 8, place.parity);
    return slots + place.slot * slot_bytes;
  }
  // All lanes have read the slot.
  __device__ __forceinline__ void release() {
    if (threadIdx.x % kWarpSize == 0) barrier_arrive(empty + place.slot * 8);
    place.advance(num_slots);
  }
};

// One warp: brings the activations of the block's columns once for each round of units, a copy per
// row and slot: the copy engine's time goes by copies more than by bytes.
__device__ __forceinline__ void bring_activations(const DenseGemmParams& p, const DenseShare& share,
                                                  int num_rounds, int num_rows,
                                                  const int32_t* in_rows, ActivationRing ring) {
  const int lane = threadIdx.x % kWarpSize;
  const int slot_blocks = ring.chunks * kChunkBlocks;
  int filled = 0;
  for (int round = 0; round < num_rounds; ++round) {
    for (int at = share.begin; at < share.end; at += slot_blocks) {
      // The first filling of a slot waits for no one.
      if (filled >= ring.num_slots) {
        barrier_wait(ring.empty + ring.place.slot * 8, ring.place.parity ^ 1);
      }
      ++filled;
      const uint32_t barrier = ring.full + ring.place.slot * 8;
      const int column = at * kBlockCols;
      const int columns = min(min(slot_blocks, share.end - at) * kBlockCols, p.in_size - column);
      if (lane == 0) barrier_expect(barrier, num_rows * columns * 2);
      __syncwarp();
      for (int row = lane; row < num_rows; row += kWarpSize) {
        bulk_copy(ring.slots + ring.place.slot * ring.slot_bytes + row * ring.row_bytes,
                  p.x + static_cast<int64_t>(in_rows[row]) * p.in_size + column, columns * 2,
                  barrier);
      }
      ring.place.advance(ring.num_slots);
    }
  }
}

}  // namespace medley::cuda
