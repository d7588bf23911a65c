#include "cpu/context.h"

#include "cpu/parallel.h"
#include "cpu/simd.h"

namespace medley::cpu {

const float** widen_rows(Context& context, const ConstTensorView& view, int num_rows,
                         int64_t cols) {
  const float** rows = context.workspace.x_rows.reserve(num_rows);
  float* wide = view.dtype == DType::kF32 ? nullptr : context.workspace.x.reserve(num_rows * cols);
  parallel_rows(context.pool, num_rows, wide == nullptr ? 1 : cols, [&](int64_t row) {
    rows[row] = load_row(view.data, view.dtype, row * cols, cols,
                         wide == nullptr ? nullptr : wide + row * cols);
  });
  return rows;
}

float** accumulator_rows(Context& context, const TensorView& view, int num_rows, int64_t cols) {
  float** rows = context.workspace.out_rows.reserve(num_rows);
  float* base =
      view.dtype == DType::kF32 ? view.as<float>() : context.workspace.acc.reserve(num_rows * cols);
  for (int row = 0; row < num_rows; ++row) rows[row] = base + row * cols;
  return rows;
}

void finish_rows(Context& context, float* const* acc, const float* bias, const TensorView& view,
                 int num_rows, int64_t cols) {
  if (bias == nullptr && view.dtype == DType::kF32) return;
  parallel_rows(context.pool, num_rows, cols, [&](int64_t row) {
    if (bias != nullptr) {
      for (int64_t i = 0; i < cols; ++i) acc[row][i] += bias[i];
    }
    if (view.dtype != DType::kF32) store_row(acc[row], view.data, view.dtype, row * cols, cols);
  });
}

void reserve_rows(Context& context, int64_t in_cols, int64_t out_cols) {
  const int64_t rows = context.max_rows();
  Workspace& workspace = context.workspace;
  workspace.x.reserve(rows * in_cols);
  workspace.acc.reserve(rows * out_cols);
  workspace.x_rows.reserve(rows);
  workspace.out_rows.reserve(rows);
  workspace.lora_x.reserve(rows);
  workspace.lora_out.reserve(rows);
  workspace.tasks.reserve(max_lora_tasks(rows, rows));
}

}  // namespace medley::cpu
