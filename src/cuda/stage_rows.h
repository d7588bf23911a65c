#pragma once

#include <span>

#include "base/error.h"
#include "cuda/pack_kernel.h"
#include "cuda/pack_matrix.h"

namespace medley::cuda {

// The type of all rows of `matrices`: their own where it is one, else float32. They are all MXFP4
// or none is.
RowType common_row_type(std::span<const MatrixView> matrices);

// How rows of one type lie in a staging buffer: first all rows, then all scales.
struct StagedLayout {
  RowType type = RowType::kBF16;
  int cols = 0;
  int64_t pitch = 0;
  int64_t scale_pitch = 0;

  static StagedLayout of(RowType type, int64_t cols);
  size_t num_bytes(int64_t rows) const { return rows * (pitch + scale_pitch); }
  // `buffer` holds `rows` rows.
  StagedRows rows_at(const uint8_t* buffer, int64_t rows) const;
};

// Copies rows out of host memory one after another, as they are or, where the layout has float32,
// widened; null ones become padding.
// kInvalidArgument and kUnsupported for scales as pack_matrix says, naming row and block.
Result<void> stage_rows(const StagedLayout& layout, std::span<const SourceRow> rows, uint8_t* out);

}  // namespace medley::cuda
