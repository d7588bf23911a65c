#pragma once

#include "cuda/route_dot.cuh"
#include "cuda/route_kernel.h"

namespace medley::cuda {

// Adds B (scale A x), with s = scale A x rounded to bfloat16, to `logits` (num_experts). One block;
// `x` is the row, padded with zeros. A whole barrier before and after.
__device__ inline void add_lora_logits(const RouteParams& p, const LoraEntry& entry, const float* x,
                                       float* logits) {
  __shared__ float s[kMaxRank];
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int num_blocks = p.layout.padded_cols / 32;
  for (int octet = warp; octet < entry.rank / 8; octet += num_warps) {
    const uint8_t* a = entry.a + static_cast<int64_t>(octet / 2) * p.layout.unit_bytes +
                       octet % 2 * 512 + lane * 16;
    float sum = 0.0f;
#pragma unroll 4
    for (int block = 0; block < num_blocks; ++block) {
      sum = dot_bf16x8(*reinterpret_cast<const uint4*>(a + block * 1024),
                       x + block * 32 + lane % 4 * 8, sum);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int rank = octet * 8 + lane / 4;
    if (lane % 4 == 0) s[rank] = __bfloat162float(__float2bfloat16_rn(sum * entry.scale[rank]));
  }
  __syncthreads();
  const int num_units = (p.num_experts + kUnitRows - 1) / kUnitRows;
  const int rank_blocks = entry.rank / kRankBlock;
  for (int unit = warp; unit < num_units; unit += num_warps) {
    float low = 0.0f;
    float high = 0.0f;
    for (int block = 0; block < rank_blocks; ++block) {
      const uint4 b = *reinterpret_cast<const uint4*>(
          entry.b + (static_cast<int64_t>(unit) * rank_blocks + block) * kRankBlockBytes +
          lane * 16);
      const float* mine = s + block * kRankBlock + lane % 4 * 4;
      const auto add = [&](uint32_t word, const float* at, float& sum) {
        const float2 pair = unpack_bf16x2(word);
        sum += pair.x * at[0];
        sum += pair.y * at[1];
      };
      add(b.x, mine, low);
      add(b.z, mine + 2, low);
      add(b.y, mine, high);
      add(b.w, mine + 2, high);
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      low += __shfl_xor_sync(0xffffffffu, low, offset);
      high += __shfl_xor_sync(0xffffffffu, high, offset);
    }
    if (lane % 4 != 0) continue;
    const int expert = unit * kUnitRows + lane / 4;
    if (expert < p.num_experts) logits[expert] += low;
    if (expert + 8 < p.num_experts) logits[expert + 8] += high;
  }
  __syncthreads();
}

}  // namespace medley::cuda
