#pragma once

#include <cstdint>
#include <vector>

#include "backend/weights.h"

namespace medley::cuda {

// Elements [col, col + count) of a row of a kFloat view as bfloat16 (to nearest even, as
// float_to_bf16).
void read_bf16(const MatrixView& view, int64_t row, int64_t col, int64_t count, uint16_t* out);

// The same of rows [row, row + num_rows), `out_stride` elements apart. Whole rows of 32, 32 apart,
// are written past the caches: `out` is then a multiple of 64 bytes.
struct Bf16Tile {
  int64_t row = 0;
  int64_t col = 0;
  int num_rows = 0;
  int num_cols = 0;
};
void read_bf16_tile(const MatrixView& view, const Bf16Tile& tile, uint16_t* out,
                    int64_t out_stride);

// 16 values each of two rows, by pairs: low 0-1, high 0-1, low 2-3, high 2-3, ...: 64 bytes at a
// multiple of 64, written past the caches.
void interleave_pairs(const uint16_t* low, const uint16_t* high, uint8_t* out);

// What was written past the caches so far is visible to whoever this thread tells of it.
void finish_streaming();

// Whether matrices (of one shape and type) lie element by element side by side: (row, col, matrix)
// with neither gap nor padding in a row, as fused adapter files hold the experts' B.
bool are_interleaved(const std::vector<MatrixView>& matrices);

// (rows, cols) -> (cols, rows).
void transpose(const uint16_t* in, int rows, int cols, uint16_t* out);

}  // namespace medley::cuda
