#pragma once

#include <list>
#include <numeric>

#include "side.h"
#include "slow_copy.h"

// Inputs of the dense ops' tests. Views point into the vectors that they are made of.

namespace medley::testing {

inline VectorView vector_view(const std::vector<float>& values) {
  return {.dtype = DType::kF32, .data = values.data(), .size = static_cast<int64_t>(values.size())};
}
inline MatrixView matrix_view(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return {
      .dtype = DType::kF32, .data = values.data(), .rows = rows, .cols = cols, .row_stride = cols};
}
inline std::vector<float> bf16_values(int64_t count, uint32_t seed, float scale) {
  std::vector<float> values = random_values(count, seed, scale);
  for (float& value : values) value = bf16_to_float(float_to_bf16(value));
  return values;
}

struct StepRows {
  std::vector<int32_t> adapter_of_row;
  std::vector<int32_t> logit_rows = {};
  std::vector<int32_t> token_ids = {};  // empty: zeros
};

// One row a sequence, row i in sampler slot i.
inline std::unique_ptr<Step> make_step(Side& side, const StepRows& what) {
  const int rows = static_cast<int>(what.adapter_of_row.size());
  auto step =
      side.backend().make_step({.max_rows = rows, .max_seqs = rows, .max_pages = rows}).value();
  const std::vector<int32_t> zeros(rows, 0);
  const std::vector<int32_t> ones(rows, 1);
  std::vector<int32_t> each(rows + 1);
  std::iota(each.begin(), each.end(), 0);
  const std::span<const int32_t> first(each.data(), rows);
  step->update({.token_ids = what.token_ids.empty() ? zeros : what.token_ids,
                .positions = zeros,
                .seq_of_row = first,
                .adapter_of_row = what.adapter_of_row,
                .q_indptr = each,
                .kv_lens = ones,
                .page_indptr = each,
                .page_ids = first,
                .sampler_slots = first,
                .logit_rows = what.logit_rows,
                .logit_seqs = what.logit_rows},
               side.stream());
  return step;
}

// Bfloat16 values on the side's device. On CUDA a kernel brings them that lets its dependent start
// at once and writes 100 us later.
inline TensorView late_rows(Side& side, const std::vector<float>& values, int64_t rows,
                            int64_t cols) {
  const TensorView source = side.upload(values, DType::kBF16, {rows, cols});
  if (!side.is_cuda()) return source;
  const TensorView late = side.empty(DType::kBF16, {rows, cols});
  launch_slow_copy(late.data, source.data, source.num_bytes(), cuda::cuda_stream(side.stream()));
  return late;
}

// The pairs of one module with random values, which it owns.
class TestPairs {
 public:
  explicit TestPairs(const LoraSite& site) { module_.site = site; }
  void add(int64_t row_begin, int64_t row_end, int rank, int64_t in_size, uint32_t seed) {
    values_.push_back(bf16_values(rank * in_size, seed, 0.05f));
    const std::vector<float>& a = values_.back();
    values_.push_back(bf16_values((row_end - row_begin) * rank, seed + 1, 0.5f));
    module_.pairs.push_back({.row_begin = row_begin,
                             .row_end = row_end,
                             .rank = rank,
                             .a = {matrix_view(a, rank, in_size)},
                             .b = {matrix_view(values_.back(), row_end - row_begin, rank)},
                             .scale = random_values(rank, seed + 2)});
  }
  bool empty() const { return module_.pairs.empty(); }
  const LoraModuleWeights& module() const { return module_; }

 private:
  std::list<std::vector<float>> values_;
  LoraModuleWeights module_;
};

// Rows without an adapter between rows of two.
inline std::vector<int32_t> mixed_adapters(int rows) {
  std::vector<int32_t> adapters(rows);
  for (int i = 0; i < rows; ++i) adapters[i] = (i + 1) % 3 - 1;
  return adapters;
}

}  // namespace medley::testing
