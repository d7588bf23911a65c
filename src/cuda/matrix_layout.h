#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/mxfp4_code.h"

namespace medley::cuda {

enum class StreamFormat : uint8_t { kBF16, kMxfp4 };

// The packed layout of one matrix (rows, cols), made to be streamed in order by one warp per unit:
//
//   matrix = units of 16 rows = stages = blocks
//   kMxfp4 block, 64 columns: 32 lanes x 16 bytes of codes; the stage's blocks of codes come first,
//     then 32 bytes of scales per block: per lane group g the bytes of (row g, columns 0-31), (row
//     g + 8, 0-31), (g, 32-63), (g + 8, 32-63), each E8M0 exponent + kScaleBias
//   kBF16 block, 32 columns: 32 lanes x 16 bytes of rows 0-7, then the same of rows 8-15
//
// Lane 4 g + q holds columns 8 q .. 8 q + 7 of each 32 of rows g and g + 8: the A operand of two
// mma.m16n8k16 steps whose k order is free, as the activations are read in the same order.
struct MatrixLayout {
  StreamFormat format = StreamFormat::kBF16;
  int num_units = 0;
  int padded_cols = 0;
  int stage_blocks = 0;
  int num_stages = 0;
  int stage_bytes = 0;
  uint32_t unit_bytes = 0;

  constexpr size_t matrix_bytes() const { return static_cast<size_t>(num_units) * unit_bytes; }
};

inline constexpr int kUnitRows = 16;
inline constexpr int block_cols(StreamFormat format) {
  return format == StreamFormat::kMxfp4 ? 64 : 32;
}
inline constexpr int block_bytes(StreamFormat format) {
  return format == StreamFormat::kMxfp4 ? 544 : 1024;
}
inline constexpr int kCodeBytes = 512;  // kMxfp4: codes of a block
inline constexpr int kScaleBytes = 32;  // kMxfp4: scales of a block
inline constexpr int kMaxStageBytes = 4096;

// Activations meet kMxfp4 codes as bfloat16 times 2^kActivationShift, so that products with
// E2M1 * 2^-126 stay normal in float32. The scale that restores a sum of products is then
// 2^(e - 127 + 126 - 64), whose float32 exponent field is e + kScaleBias.
inline constexpr int kActivationShift = 64;
inline constexpr int kScaleBias = kE2M1Exponent - kActivationShift;
inline constexpr int kMaxScaleByte = 254 - kScaleBias;

MatrixLayout make_matrix_layout(StreamFormat format, int64_t rows, int64_t cols);

}  // namespace medley::cuda
