#pragma once

#include "cuda/expert_shrink.cuh"

// LoRA's second half in a step of one row (expert_gemm_row.cu), whose pairs all have the row's
// adapter: what it adds to a unit.

namespace medley::cuda {

// One of a block's units.
struct RowUnit {
  const uint8_t* weights;
  int32_t pair;
  int32_t expert;
  int32_t in_matrix;
};

// The step's adapter at this site.
struct RowLora {
  const uint8_t* b;
  int64_t b_expert_bytes;
  int32_t rank_blocks;  // 0: none
  int32_t up_offset;    // gate_up with an A each: where up's s lies from gate's; else 0
};

// The step's adapter at this site, read by each warp that needs it.
__device__ __forceinline__ RowLora load_lora(const ExpertGemmParams& p) {
  if (__ldcg(p.routing.num_segments) == 0) return {};
  const LoraEntry& entry = p.lora[__ldcg(&p.routing.segments[0].slot)];
  return {.b = entry.b,
          .b_expert_bytes = entry.b_expert_bytes,
          .rank_blocks = entry.rank / kRankBlock,
          .up_offset = entry.num_a == 1 ? 0 : entry.rank};
}

// The sums of rows lane / 4 and lane / 4 + 8, of what four lanes have of all columns of an mma.
__device__ __forceinline__ float2 add_columns(const float (&sum)[4]) {
  float2 total = {sum[0] + sum[1], sum[2] + sum[3]};
#pragma unroll
  for (int offset = 1; offset < 4; offset *= 2) {
    total.x += __shfl_xor_sync(0xffffffffu, total.x, offset);
    total.y += __shfl_xor_sync(0xffffffffu, total.y, offset);
  }
  return total;
}

// scale * A x as the shrinks left it, in ranges: 4 ranks.
__device__ __forceinline__ uint2 load_s(const ExpertGemmParams& p, const float* from) {
  float4 total = {};
#pragma unroll
  for (int i = 0; i < kMaxShrinkRanges; ++i) {
    if (i >= p.shrink_ranges) break;
    const float4 v = __ldcg(reinterpret_cast<const float4*>(from + i * p.s_stride));
    total = {total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w};
  }
  return {pack_bf16x2(total.x, total.y), pack_bf16x2(total.z, total.w)};
}

// What the adapter adds to a unit, in the form of multiply_stage: an mma's column n stands for rank
// block n of a run of eight.
__device__ __forceinline__ float2 multiply_lora(const ExpertGemmParams& p, const RowLora& lora,
                                                const RowUnit& unit, const uint32_t* done,
                                                int32_t* seen) {
  constexpr int kTogether = 2;
  const int lane = threadIdx.x % kWarpSize;
  const uint8_t* b = lora.b + unit.expert * lora.b_expert_bytes +
                     static_cast<int64_t>(unit.in_matrix) * lora.rank_blocks * kRankBlockBytes +
                     lane * 16;
  const float* s = range_sums(p) + static_cast<int64_t>(unit.pair) * p.shrink_ranges * p.s_stride +
                   lane / 4 * kRankBlock + lane % 4 * 4;
  float sum[4] = {};
  uint2 gate = {};
  uint2 up = {};
  for (int first = 0; first < lora.rank_blocks; first += kTogether) {
    uint4 rows[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      rows[j] = {};
      if (first + j < lora.rank_blocks) rows[j] = load_once(b + (first + j) * kRankBlockBytes);
    }
    if (first == 0) wait_for_shrinks(done + unit.pair, /*count=*/1, p.shrink_ranges, seen);
    if (first % 8 == 0) {
      const bool there = first + lane / 4 < lora.rank_blocks;
      gate = there ? load_s(p, s + first * kRankBlock) : uint2{};
      up = gate;
      if (lora.up_offset != 0) {
        up = there ? load_s(p, s + lora.up_offset + first * kRankBlock) : uint2{};
      }
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const bool mine = lane / 4 == (first + j) % 8;
      // Where gate and up share the unit, rows 0-7 take gate's s and 8-15 up's.
      mma_16x8x16(sum, {rows[j].x, 0u, rows[j].z, 0u}, mine ? gate.x : 0u, mine ? gate.y : 0u, sum);
      mma_16x8x16(sum, {0u, rows[j].y, 0u, rows[j].w}, mine ? up.x : 0u, mine ? up.y : 0u, sum);
    }
  }
  return add_columns(sum);
}

}  // namespace medley::cuda
