#pragma once

#include "cuda/expert_gemm_kernel.h"
#include "cuda/gate.cuh"
#include "cuda/unit_sum.cuh"

// The pieces of expert_gemm.cu: what a warp does with one stage of a unit.

namespace medley::cuda {

// Adds one kMxfp4 block: `codes` and `scales` are this lane's, `x` its first 16 bytes of the block.
template <int kHalves>
__device__ __forceinline__ void add_mxfp4_block(UnitSum<kHalves>& sum, uint32_t codes,
                                                uint32_t scales, uint32_t x, int half_stride) {
  const uint4 w = load_shared_16(codes);
  const uint32_t scale = load_shared_4(scales);
  const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int g = 0; g < 2; ++g) {
    uint32_t low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = e2m1_pair(word[2 * g], i);
      high[i] = e2m1_pair(word[2 * g + 1], i);
    }
    const float low_scale =
        __uint_as_float(g == 0 ? (scale << 23) & 0x7f800000u : (scale << 7) & 0x7f800000u);
    const float high_scale =
        __uint_as_float(g == 0 ? (scale << 15) & 0x7f800000u : (scale >> 1) & 0x7f800000u);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const uint4 v = load_shared_16(x + h * half_stride + g * 64);
      const float zero[4] = {};
      float part[4];
      mma_16x8x16(part, {low[0], high[0], low[1], high[1]}, v.x, v.y, zero);
      mma_16x8x16(part, {low[2], high[2], low[3], high[3]}, v.z, v.w, part);
      sum.value[h][0] += part[0] * low_scale;
      sum.value[h][1] += part[1] * low_scale;
      sum.value[h][2] += part[2] * high_scale;
      sum.value[h][3] += part[3] * high_scale;
    }
  }
}

// `x` is the address of this lane's first 16 bytes: row lane / 4 at the stage's first column, plus
// 16 (lane % 4) bytes.
template <int kUnroll, int kHalves>
__device__ __forceinline__ void add_mxfp4_stage(UnitSum<kHalves>& sum, uint32_t stage, uint32_t x,
                                                int num_blocks, int half_stride) {
  const int lane = threadIdx.x % kWarpSize;
  const uint32_t codes = stage + lane * 16;
  const uint32_t scales = stage + num_blocks * kCodeBytes + lane / 4 * 4;
#pragma unroll kUnroll
  for (int block = 0; block < num_blocks; ++block) {
    add_mxfp4_block(sum, codes + block * kCodeBytes, scales + block * kScaleBytes, x + block * 128,
                    half_stride);
  }
}

template <int kHalves>
__device__ __forceinline__ void add_bf16_stage(UnitSum<kHalves>& sum, uint32_t stage, uint32_t x,
                                               int num_blocks, int half_stride) {
  const uint32_t weights = stage + threadIdx.x % kWarpSize * 16;
#pragma unroll 2
  for (int block = 0; block < num_blocks; ++block) {
    const uint4 low = load_shared_16(weights + block * 1024);
    const uint4 high = load_shared_16(weights + block * 1024 + 512);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      add_bf16_block(sum.value[h], low, high, load_shared_16(x + h * half_stride + block * 64));
    }
  }
}

template <StreamFormat kFormat, int kUnroll, int kHalves>
__device__ __forceinline__ void add_stage(UnitSum<kHalves>& sum, uint32_t stage, uint32_t x,
                                          int num_blocks, int half_stride) {
  if constexpr (kFormat == StreamFormat::kMxfp4) {
    add_mxfp4_stage<kUnroll>(sum, stage, x, num_blocks, half_stride);
  } else {
    add_bf16_stage(sum, stage, x, num_blocks, half_stride);
  }
}

}  // namespace medley::cuda
