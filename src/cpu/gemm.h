#pragma once

#include <cstdint>
#include <span>

#include "backend/weights.h"
#include "base/thread_pool.h"
#include "cpu/memory.h"
#include "tensor/dtype.h"

// Matrix products whose result for one row never depends on the other rows: every output element is
// one float32 accumulator that takes k = 0, 1, 2, ... by fused multiply-add. Eigen is not used,
// since its order over k follows its cache blocking and so the number of rows.
namespace medley::cpu {

inline constexpr int kPanelWidth = 16;

// A weight (rows, cols) in panels of 16 rows: panel p holds, for each k, the elements (16p .. 16p +
// 15, k) side by side. The last panel is as narrow as the rows that are left, and 16 elements of
// slack follow it. bfloat16 stays bfloat16.
struct PackedMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::kF32;  // kF32 or kBF16
  AlignedBuffer data;

  int64_t num_panels() const { return (rows + kPanelWidth - 1) / kPanelWidth; }
};

// Stacks `parts` (all with the same cols) along the rows. bfloat16 and MXFP4 become bfloat16, both
// exactly; anything else makes the whole matrix float32, unless `to_bf16` asks for rounding. `pool`
// may be null. Parts are valid (see check_mxfp4).
PackedMatrix pack_matrix(std::span<const MatrixView> parts, bool to_bf16, ThreadPool* pool);

// out[i][n] = sum over k of x[i][k] * w(n, k), for rows i in [0, num_rows); with `accumulate` the
// sum starts from out[i][n].
struct GemmProblem {
  const PackedMatrix* weight = nullptr;
  const float* const* x = nullptr;
  float* const* out = nullptr;
  int num_rows = 0;
  bool accumulate = false;
};

// All problems, spread over the pool.
void gemm(std::span<const GemmProblem> problems, ThreadPool& pool);

// One problem on the calling thread.
void gemm(const GemmProblem& problem);

}  // namespace medley::cpu
