#pragma once

#include "cuda/expert_gemm.cuh"
#include "cuda/expert_gemm_stream.cuh"
#include "cuda/expert_shrink.cuh"

// LoRA's second half inside expert_gemm: a unit's sums += B s, in the product's own accumulators.
// The rank blocks of all of a tile's segments make one list, which is walked for each unit.

namespace medley::cuda {

// 16 ranks of one segment.
struct RankBlock {
  const uint8_t* b;    // of unit 0
  int32_t unit_bytes;  // from a unit's to the next one's
  int32_t s_offset;    // in a pair's s
  int32_t up_offset;   // gate_up with an A each: where up's s lies from gate's; else 0
  int16_t begin;       // columns of the tile
  int16_t end;
};

// In shared memory, of one tile.
struct TileLora {
  static constexpr int kMaxBlocks = 64;
  RankBlock blocks[kMaxBlocks];
  int32_t num_blocks;  // -1: more than there is room for
  int32_t listed;      // whether the list is complete: it is made while the tile's first units run
  int32_t seen;        // whether all shrinks of the tile were seen done
};

__device__ __forceinline__ RankBlock first_rank_block(const ExpertGemmParams& p,
                                                      const RouteTile& tile, int segment_idx,
                                                      int& num_blocks) {
  const int4 found = __ldcg(reinterpret_cast<const int4*>(p.routing.segments + segment_idx));
  const auto& [expert, slot, begin, count] = found;
  const LoraEntry& entry = p.lora[slot];
  num_blocks = entry.rank / kRankBlock;
  return {.b = entry.b + expert * entry.b_expert_bytes,
          .unit_bytes = num_blocks * kRankBlockBytes,
          .s_offset = 0,
          .up_offset = entry.num_a == 1 ? 0 : entry.rank,
          .begin = static_cast<int16_t>(begin - tile.begin),
          .end = static_cast<int16_t>(begin - tile.begin + count)};
}
__device__ __forceinline__ void advance(RankBlock& block) {
  block.b += kRankBlockBytes;
  block.s_offset += kRankBlock;
}

__device__ __forceinline__ bool is_listed(const TileLora& lora) {
  return *static_cast<const volatile int32_t*>(&lora.listed) != 0;
}

// One warp: the lists of a group's tiles.
__device__ __forceinline__ void list_rank_blocks(const ExpertGemmParams& p, const TileGroup& group,
                                                 TileLora* loras) {
  const int place = threadIdx.x % kWarpSize / kTileRows;
  const int i = threadIdx.x % kTileRows;
  const RouteTile& tile = group.tiles[place];
  const bool active = place < group.num_tiles && i < tile.segment_count;
  int num_blocks = 0;
  if (active) first_rank_block(p, tile, tile.segment_begin + i, num_blocks);
  int through = num_blocks;
#pragma unroll
  for (int offset = 1; offset < kTileRows; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, through, offset, kTileRows);
    if (i >= offset) through += other;
  }
  const int total = __shfl_sync(0xffffffffu, through, kTileRows - 1, kTileRows);
  TileLora& lora = loras[place];
  const bool fits = total <= TileLora::kMaxBlocks;
  if (i == 0) {
    lora.num_blocks = fits ? total : -1;
    lora.seen = 0;
  }
  if (fits && active) {
    // Read again: there are no registers to keep it in.
    RankBlock block = first_rank_block(p, tile, tile.segment_begin + i, num_blocks);
    for (int j = through - num_blocks; j < through; ++j) {
      lora.blocks[j] = block;
      advance(block);
    }
  }
  __threadfence_block();
  __syncwarp();
  if (i == 0) *static_cast<volatile int32_t*>(&lora.listed) = 1;
}

// Asks for a unit's B ahead of time, if it is known where that is.
__device__ __forceinline__ void prefetch_b(const TileLora& lora, int unit) {
  if (!is_listed(lora)) return;
  const int lane = threadIdx.x % kWarpSize;
  for (int j = lane / 4; j < lora.num_blocks; j += kWarpSize / 4) {
    const uint8_t* b =
        lora.blocks[j].b + static_cast<int64_t>(unit) * lora.blocks[j].unit_bytes + lane % 4 * 128;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(b));
  }
}

// A rank block's operands of this lane.
template <int kHalves>
struct RankOperands {
  uint4 b = {};
  uint2 s[kHalves] = {};
  uint2 up[kHalves] = {};
  bool two_a = false;

  // `s_of_lane`: the tile's first pair, this lane's column, its first rank.
  __device__ void load(const ExpertGemmParams& p, const RankBlock& block, int unit,
                       const __nv_bfloat16* s_of_lane) {
    const int lane = threadIdx.x % kWarpSize;
    b = load_once(block.b + static_cast<int64_t>(unit) * block.unit_bytes + lane * 16);
    two_a = block.up_offset != 0;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int column = h * kHalfRows + lane / 4;
      if (column < block.begin || column >= block.end) continue;
      const __nv_bfloat16* from =
          s_of_lane + static_cast<int64_t>(h) * kHalfRows * p.s_stride + block.s_offset;
      s[h] = *reinterpret_cast<const uint2*>(from);
      if (two_a) up[h] = *reinterpret_cast<const uint2*>(from + block.up_offset);
    }
  }
  // Where gate and up share the unit and have an A each, rows 0-7 take gate's s and 8-15 up's.
  __device__ void add_to(UnitSum<kHalves>& sum) const {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      if (!two_a) {
        mma_16x8x16(sum.value[h], {b.x, b.y, b.z, b.w}, s[h].x, s[h].y, sum.value[h]);
      } else {
        mma_16x8x16(sum.value[h], {b.x, 0u, b.z, 0u}, s[h].x, s[h].y, sum.value[h]);
        mma_16x8x16(sum.value[h], {0u, b.y, 0u, b.w}, up[h].x, up[h].y, sum.value[h]);
      }
    }
  }
};

// What the tile's adapters add to one unit.
template <int kHalves>
__device__ __forceinline__ void add_lora(UnitSum<kHalves>& sum, const ExpertGemmParams& p,
                                         const RouteTile& tile, TileLora& lora,
                                         const uint32_t* done, int unit) {
  const int lane = threadIdx.x % kWarpSize;
  if (tile.segment_count == 0) return;
  while (!is_listed(lora)) {
  }
  wait_for_shrinks(done + tile.segment_begin, tile.segment_count, p.shrink_ranges, &lora.seen);
  const __nv_bfloat16* s =
      p.s + static_cast<int64_t>(tile.begin + lane / 4) * p.s_stride + lane % 4 * 4;
  constexpr int kTogether = kHalves == 1 ? 4 : 2;
  for (int j = 0; j < lora.num_blocks; j += kTogether) {
    RankOperands<kHalves> operands[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (j + i < lora.num_blocks) operands[i].load(p, lora.blocks[j + i], unit, s);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) operands[i].add_to(sum);
  }
  if (lora.num_blocks >= 0) return;
  for (int i = 0; i < tile.segment_count; ++i) {
    int num_blocks = 0;
    RankBlock block = first_rank_block(p, tile, tile.segment_begin + i, num_blocks);
    for (int j = 0; j < num_blocks; ++j) {
      RankOperands<kHalves> operands;
      operands.load(p, block, unit, s);
      operands.add_to(sum);
      advance(block);
    }
  }
}

}  // namespace medley::cuda
