#include <cuda_fp16.h>

#include "cuda/check.h"
#include "cuda/pack_kernel.h"

namespace medley::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

// As float_to_bf16 of tensor/dtype.h.
__device__ __forceinline__ uint32_t bf16_bits(uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

template <RowType kType>
__device__ __forceinline__ uint32_t element_bits(const uint8_t* row, int col) {
  if constexpr (kType == RowType::kBF16) {
    return bf16_bits(uint32_t{reinterpret_cast<const uint16_t*>(row)[col]} << 16);
  } else if constexpr (kType == RowType::kF16) {
    const __half value = reinterpret_cast<const __half*>(row)[col];
    return __hisnan(value) ? 0x7fc0u : bf16_bits(__float_as_uint(__half2float(value)));
  } else {
    return bf16_bits(reinterpret_cast<const uint32_t*>(row)[col]);
  }
}

// One thread writes the eight values of a lane.
template <RowType kType>
__global__ void __launch_bounds__(kThreads)
    pack_float_units(const StagedRows from, const MatrixLayout layout, uint8_t* out) {
  const uint8_t* unit_rows = from.rows + int64_t{blockIdx.x} * kUnitRows * from.pitch;
  uint8_t* unit_out = out + int64_t{blockIdx.x} * layout.unit_bytes;
  const int num_pieces = layout.padded_cols / 32 * 64;
  for (int piece = blockIdx.y * kThreads + threadIdx.x; piece < num_pieces;
       piece += gridDim.y * kThreads) {
    const int lane = piece % 32;
    const int row = piece / 32 % 2 * 8 + lane / 4;
    const int col = piece / 64 * 32 + lane % 4 * 8;
    const uint8_t* from_row = unit_rows + row * from.pitch;
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (col + i < from.cols) {
        words[i / 2] |= element_bits<kType>(from_row, col + i) << (16 * (i % 2));
      }
    }
    reinterpret_cast<uint4*>(unit_out)[piece] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// One warp writes a block of 64 columns.
__global__ void __launch_bounds__(kThreads)
    pack_mxfp4_units(const StagedRows from, const MatrixLayout layout, const uint32_t* code_words,
                     uint8_t* out) {
  __shared__ uint32_t table[kCodeWordTable];
  for (int i = threadIdx.x; i < kCodeWordTable; i += kThreads) table[i] = code_words[i];
  __syncthreads();
  const uint8_t* unit_codes = from.rows + int64_t{blockIdx.x} * kUnitRows * from.pitch;
  const uint8_t* unit_scales = from.scales + int64_t{blockIdx.x} * kUnitRows * from.scale_pitch;
  uint8_t* unit_out = out + int64_t{blockIdx.x} * layout.unit_bytes;
  const int lane = threadIdx.x % 32;
  const int num_blocks = layout.num_stages * layout.stage_blocks;
  for (int block = blockIdx.y * kWarps + threadIdx.x / 32; block < num_blocks;
       block += gridDim.y * kWarps) {
    uint8_t* stage = unit_out + block / layout.stage_blocks * layout.stage_bytes;
    const int index = block % layout.stage_blocks;
    uint32_t words[4] = {};
#pragma unroll
    for (int place = 0; place < 4; ++place) {
      const int row = place % 2 * 8 + lane / 4;
      const int col = block * 64 + place / 2 * 32 + lane % 4 * 8;
      if (col >= from.cols) continue;
      const uint32_t codes =
          *reinterpret_cast<const uint32_t*>(unit_codes + row * from.pitch + col / 2);
      words[place] = table[codes & 0xff] ^ table[256 + (codes >> 8 & 0xff)] ^
                     table[512 + (codes >> 16 & 0xff)] ^ table[768 + (codes >> 24)];
    }
    reinterpret_cast<uint4*>(stage + index * kCodeBytes)[lane] =
        make_uint4(words[0], words[1], words[2], words[3]);
    if (lane >= 8) continue;
    uint32_t scales = 0;
#pragma unroll
    for (int place = 0; place < 4; ++place) {
      const int row = place % 2 * 8 + lane;
      const int col = block * 64 + place / 2 * 32;
      const uint8_t scale =
          col < from.cols ? unit_scales[row * from.scale_pitch + col / 32] : kPaddingScale;
      scales |= uint32_t{static_cast<uint8_t>(scale + kScaleBias)} << (8 * place);
    }
    uint8_t* stage_scales = stage + layout.stage_blocks * kCodeBytes;
    reinterpret_cast<uint32_t*>(stage_scales + index * kScaleBytes)[lane] = scales;
  }
}

template <RowType kType>
__global__ void __launch_bounds__(kThreads) pack_rows(const StagedRows from, uint16_t* out) {
  const uint8_t* row = from.rows + int64_t{blockIdx.x} * from.pitch;
  for (int col = threadIdx.x; col < from.cols; col += kThreads) {
    out[int64_t{blockIdx.x} * from.cols + col] =
        static_cast<uint16_t>(element_bits<kType>(row, col));
  }
}

}  // namespace

void launch_pack_units(const StagedRows& from, const MatrixLayout& layout, int num_units,
                       const uint32_t* code_words, uint8_t* out, cudaStream_t stream) {
  const int pieces = layout.padded_cols / 32 * (from.type == RowType::kMxfp4 ? 16 : 64);
  const dim3 grid(num_units, (pieces + 4 * kThreads - 1) / (4 * kThreads));
  switch (from.type) {
    case RowType::kBF16:
      pack_float_units<RowType::kBF16><<<grid, kThreads, 0, stream>>>(from, layout, out);
      break;
    case RowType::kF16:
      pack_float_units<RowType::kF16><<<grid, kThreads, 0, stream>>>(from, layout, out);
      break;
    case RowType::kF32:
      pack_float_units<RowType::kF32><<<grid, kThreads, 0, stream>>>(from, layout, out);
      break;
    case RowType::kMxfp4:
      pack_mxfp4_units<<<grid, kThreads, 0, stream>>>(from, layout, code_words, out);
      break;
  }
  MEDLEY_CUDA_CHECK(cudaGetLastError());
}

void launch_pack_rows(const StagedRows& from, int num_rows, uint16_t* out, cudaStream_t stream) {
  switch (from.type) {
    case RowType::kBF16:
      pack_rows<RowType::kBF16><<<num_rows, kThreads, 0, stream>>>(from, out);
      break;
    case RowType::kF16:
      pack_rows<RowType::kF16><<<num_rows, kThreads, 0, stream>>>(from, out);
      break;
    case RowType::kF32:
    case RowType::kMxfp4:
      pack_rows<RowType::kF32><<<num_rows, kThreads, 0, stream>>>(from, out);
      break;
  }
  MEDLEY_CUDA_CHECK(cudaGetLastError());
}

}  // namespace medley::cuda
