#pragma once

#include <cstdint>

#include "backend/weights.h"

namespace medley::cuda {

// Elements [col, col + count) of a row of a kFloat view as bfloat16 (to nearest even, as
// float_to_bf16). count <= 32.
void read_bf16(const MatrixView& view, int64_t row, int64_t col, int count, uint16_t* out);

// 16 values each of two rows, by pairs: low 0-1, high 0-1, low 2-3, high 2-3, ... (64 bytes).
void interleave_pairs(const uint16_t* low, const uint16_t* high, uint8_t* out);

}  // namespace medley::cuda
