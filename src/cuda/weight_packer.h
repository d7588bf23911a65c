#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/thread_pool.h"
#include "cuda/memory.h"
#include "cuda/pack_kernel.h"
#include "cuda/pack_matrix.h"
#include "cuda/stage_rows.h"

namespace medley::cuda {

// Matrices of one shape that lie one after another in device memory.
struct PackJob {
  MatrixLayout layout;
  RowType type = RowType::kBF16;  // of all rows that `source` names (common_row_type)
  int64_t cols = 0;
  int num_matrices = 1;
  std::function<SourceRow(int matrix, int unit, int row)> source;
  uint8_t* out = nullptr;  // device; num_matrices * layout.matrix_bytes()
};

// Brings weights to the device in its layout: threads copy rows of the checkpoint to page-locked
// buffers, the device fetches each and packs it while the next are being filled. Row types and
// results are those of pack_matrix, to the bit. One caller at a time.
class WeightPacker {
 public:
  WeightPacker();
  ~WeightPacker();
  WeightPacker(const WeightPacker&) = delete;
  WeightPacker& operator=(const WeightPacker&) = delete;

  // Both return when the weights are in place. Errors are those of stage_rows, with the matrix
  // named where there are several.
  Result<void> pack(const PackJob& job);
  Result<void> pack_rows(const MatrixView& table, uint16_t* out);  // (rows, cols) bfloat16

  // Frees threads and buffers (the next job makes new ones); the times since the last call.
  PackingTimes finish();

 private:
  class Lane;
  struct Chunk;

  Result<void> run(int64_t num_chunks, const std::function<Result<void>(int64_t, Lane&)>& work);

  std::unique_ptr<ThreadPool> threads_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  DeviceBuffer code_words_;
  PackingTimes times_;
};

}  // namespace medley::cuda
