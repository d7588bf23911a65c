#pragma once

#include "cuda/expert_gemm_kernel.h"
#include "cuda/unit_sum.cuh"

// What a warp of an expert product does with one stage of a unit.

namespace medley::cuda {

// The kMxfp4 codes of 32 columns, the g-th of a lane's 64, as an mma's operands: the lower rows'
// and the higher's.
struct Unpacked {
  uint32_t low[4];
  uint32_t high[4];

  __device__ __forceinline__ Unpacked(uint4 codes, int g) {
    const uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = e2m1_pair(word[2 * g], i);
      high[i] = e2m1_pair(word[2 * g + 1], i);
    }
  }
  // sum = these times `x`, this lane's 16 bytes of the columns.
  __device__ __forceinline__ void multiply(float (&sum)[4], uint4 x) const {
    const float zero[4] = {};
    mma_16x8x16(sum, {low[0], high[0], low[1], high[1]}, x.x, x.y, zero);
    mma_16x8x16(sum, {low[2], high[2], low[3], high[3]}, x.z, x.w, sum);
  }
};

// Adds one kMxfp4 block: `codes` and `scales` are this lane's, `x` its first 16 bytes of the block.
template <int kHalves>
__device__ __forceinline__ void add_mxfp4_block(UnitSum<kHalves>& sum, uint32_t codes,
                                                uint32_t scales, uint32_t x, int half_stride) {
  const uint4 w = load_shared_16(codes);
  const uint32_t scale = load_shared_4(scales);
#pragma unroll
  for (int g = 0; g < 2; ++g) {
    const Unpacked weights(w, g);
    const float low_scale =
        __uint_as_float(g == 0 ? (scale << 23) & 0x7f800000u : (scale << 7) & 0x7f800000u);
    const float high_scale =
        __uint_as_float(g == 0 ? (scale << 15) & 0x7f800000u : (scale >> 1) & 0x7f800000u);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      float part[4];
      weights.multiply(part, load_shared_16(x + h * half_stride + g * 64));
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
