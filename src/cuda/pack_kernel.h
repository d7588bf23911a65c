#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/matrix_layout.h"

namespace medley::cuda {

enum class RowType : uint8_t { kBF16, kF16, kF32, kMxfp4 };

inline constexpr int kRowAlignment = 16;  // bytes, of every staged row

// Rows in device memory as a checkpoint has them, in the order of units, 16 a unit.
struct StagedRows {
  RowType type = RowType::kBF16;
  const uint8_t* rows = nullptr;  // kMxfp4: the codes
  int64_t pitch = 0;              // bytes
  const uint8_t* scales = nullptr;
  int64_t scale_pitch = 0;
  int cols = 0;
};

// A staged row of padding has zeros for codes and this for scales.
inline constexpr uint8_t kPaddingScale = static_cast<uint8_t>(1 - kScaleBias);

inline constexpr int kCodeWordTable = 4 * 256;

// Writes `num_units` units of `layout` to `out`, to the bit as pack_matrix does. `code_words`
// (device) has the part of encode_e2m1's word that byte `b` at place `i` of four makes at 256 i +
// b.
void launch_pack_units(const StagedRows& from, const MatrixLayout& layout, int num_units,
                       const uint32_t* code_words, uint8_t* out, cudaStream_t stream);

// (num_rows, cols) bfloat16 in row-major order.
void launch_pack_rows(const StagedRows& from, int num_rows, uint16_t* out, cudaStream_t stream);

}  // namespace medley::cuda
