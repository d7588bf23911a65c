#pragma once

#include "cuda/expert_gemm_kernel.h"
#include "cuda/gate.cuh"
#include "cuda/unit_sum.cuh"

// What a warp of an expert product does with one stage of a unit, and with the sum of all of them.

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

// Where a tile has few rows, kRows of them (1 or 2) leave columns of an mma free: its column n
// then stands for row n % kRows and, of a run of 8 / kRows blocks of 32 columns of the matrix,
// block n / kRows. Each mma still multiplies one block, with all of them, and only the lanes whose
// columns are that block's add what comes out. So a lane needs the scales and the activations of
// its own columns only. `scales` and `x` are the lane's (folded_scales, folded_x).
template <int kRows, int kBlocks>
__device__ __forceinline__ void add_folded_blocks(UnitSum<1>& unit, uint32_t codes, uint32_t scales,
                                                  uint32_t x) {
  constexpr int kTogether = 4 / kRows;  // blocks of 64 columns
  constexpr uint32_t kExponent = 0x7f800000u;
  const int quad = threadIdx.x % 4;
  float(&sum)[4] = unit.value[0];
  uint4 v;
  uint32_t scale = 0;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    if (block % kTogether == 0) {
      v = load_shared_16(x + block * 128);
      scale = kRows == 1 ? load_shared_4(scales + block * kScaleBytes)
                         : load_shared_2(scales + block * kScaleBytes);
    }
    const uint4 w = load_shared_16(codes + block * kCodeBytes);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      float part[4];
      Unpacked(w, g).multiply(part, v);
      const int in_run = block % kTogether * 2 + g;  // of the run's 8 / kRows
      if constexpr (kRows == 1) {
        const float low_scale = __uint_as_float((g == 0 ? scale << 23 : scale << 7) & kExponent);
        const float high_scale = __uint_as_float((g == 0 ? scale << 15 : scale >> 1) & kExponent);
        if (quad == in_run / 2) {
          sum[g] += part[g] * low_scale;
          sum[2 + g] += part[2 + g] * high_scale;
        }
      } else {
        const float low_scale = __uint_as_float(scale << 23 & kExponent);
        const float high_scale = __uint_as_float(scale << 15 & kExponent);
        if (quad * 2 / kRows == in_run) {
          sum[0] += part[0] * low_scale;
          sum[1] += part[1] * low_scale;
          sum[2] += part[2] * high_scale;
          sum[3] += part[3] * high_scale;
        }
      }
    }
  }
}

template <int kRows>
__device__ __forceinline__ uint32_t folded_scales(uint32_t scales) {
  const int lane = threadIdx.x % kWarpSize;
  const int first = lane % 4 * 2 / kRows;  // of the run's blocks of 32 columns, the lane's first
  return scales + lane / 4 * 4 + first / 2 * kScaleBytes + first % 2 * 2;
}

// `x`: the tile's first row at the stage's first column.
template <int kRows>
__device__ __forceinline__ uint32_t folded_x(uint32_t x, int num_rows, int row_stride) {
  const int lane = threadIdx.x % kWarpSize;
  const int column = lane / 4;
  return x + min(column % kRows, num_rows - 1) * row_stride + column / kRows * 64 + lane % 4 * 16;
}

// Adds up what the lanes hold of the same row: from then on column n is row n.
template <int kRows>
__device__ __forceinline__ void unfold(UnitSum<1>& unit) {
  float(&sum)[4] = unit.value[0];
  if constexpr (kRows == 1) {
    sum[0] += sum[1];
    sum[2] += sum[3];
  }
#pragma unroll
  for (int i = 0; i < 4; i += kRows == 1 ? 2 : 1) {
    sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
    sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
  }
}

// As add_mxfp4_stage, folded.
template <int kRows, int kUnroll>
__device__ __forceinline__ void add_folded_stage(UnitSum<1>& sum, uint32_t stage, uint32_t x,
                                                 int num_blocks) {
  const uint32_t codes = stage + threadIdx.x % kWarpSize * 16;
  const uint32_t scales = folded_scales<kRows>(stage + num_blocks * kCodeBytes);
  int block = 0;
  for (; block + kUnroll <= num_blocks; block += kUnroll) {
    add_folded_blocks<kRows, kUnroll>(sum, codes + block * kCodeBytes, scales + block * kScaleBytes,
                                      x + block * 128);
  }
  for (; block < num_blocks; ++block) {
    add_folded_blocks<kRows, 1>(sum, codes + block * kCodeBytes, scales + block * kScaleBytes,
                                x + block * 128);
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

// Of this lane's two rows.
__device__ __forceinline__ float2 load_bias(const ExpertGemmParams& p, const RouteTile& tile,
                                            int unit) {
  if (p.bias == nullptr) return {};
  const float* bias =
      p.bias + (static_cast<int64_t>(tile.expert) * p.layout.num_units + unit) * kUnitRows;
  const int row = threadIdx.x % kWarpSize / 4;
  return {bias[row], bias[row + 8]};
}

template <GemmRole kRole, int kHalves>
__device__ __forceinline__ void write_unit(const ExpertGemmParams& p, const RouteTile& tile,
                                           int unit, const UnitSum<kHalves>& sum,
                                           const int32_t* out_rows, float2 bias) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = h * kHalfRows + lane % 4 * 2 + i;
      if (column >= tile.count) continue;
      const float low = sum.value[h][i] + bias.x;
      const float high = sum.value[h][2 + i] + bias.y;
      const int64_t offset = static_cast<int64_t>(out_rows[column]) * p.out_size;
      if constexpr (kRole == GemmRole::kGateUp) {
        const int row = unit * (kUnitRows / 2) + lane / 4;
        if (row < p.out_size) {
          static_cast<__nv_bfloat16*>(p.out)[offset + row] =
              __float2bfloat16_rn(gate_times_up(p.gate, low, high));
        }
      } else if constexpr (kRole == GemmRole::kGateUpRaw) {
        const int row = unit * (kUnitRows / 2) + lane / 4;
        if (row < p.out_size) {
          auto* out = static_cast<__nv_bfloat16*>(p.out) + 2 * offset + row;
          out[0] = __float2bfloat16_rn(low);
          out[p.out_size] = __float2bfloat16_rn(high);
        }
      } else {
        const int row = unit * kUnitRows + lane / 4;
        const auto store = [&](int at, float value) {
          if (at >= p.out_size) return;
          static_cast<__nv_bfloat16*>(p.out)[offset + at] = __float2bfloat16_rn(value);
        };
        store(row, low);
        store(row + 8, high);
      }
    }
  }
}

template <GemmRole kRole>
__device__ __forceinline__ const uint32_t* shrinks_done(const ExpertGemmParams& p) {
  return kRole == GemmRole::kDown ? p.routing.down_shrink.done : p.routing.gate_up_shrink.done;
}

}  // namespace medley::cuda
