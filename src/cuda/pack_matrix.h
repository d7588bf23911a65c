#pragma once

#include <functional>
#include <vector>

#include "backend/weights.h"
#include "cuda/matrix_layout.h"

namespace medley::cuda {

// Where row `row` of unit `unit` comes from; `matrix` null for a row of padding.
struct SourceRow {
  const MatrixView* matrix = nullptr;
  int64_t row = 0;
};
using RowSource = std::function<SourceRow(int unit, int row)>;

// Writes a matrix in `layout` to `out` (layout.matrix_bytes()). Views have the format that the
// layout streams, float ones any floating type. kInvalidArgument for an E8M0 scale of 255 (NaN),
// kUnsupported for one above kMaxScaleByte (2^65 and more).
Result<void> pack_matrix(const MatrixLayout& layout, const RowSource& source, uint8_t* out);

}  // namespace medley::cuda
