#pragma once

#include <vector>

#include "backend/backend.h"
#include "cpu/gemm.h"

namespace medley::cpu {

struct PackedTable : PackedWeight {
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::kF32;  // kF32 or kBF16
  AlignedBuffer data;         // (rows, cols)
  size_t num_bytes() const override { return data.num_bytes(); }
};

struct PackedVector : PackedWeight {
  std::vector<float> values;
  size_t num_bytes() const override { return values.size() * sizeof(float); }
};

struct PackedLinear : PackedWeight {
  PackedMatrix matrix;
  std::vector<float> bias;  // empty: none
  size_t num_bytes() const override {
    return matrix.data.num_bytes() + bias.size() * sizeof(float);
  }
  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
};

struct PackedExperts : PackedWeight {
  std::vector<PackedMatrix> matrices;  // by expert; gate rows, then up rows
  std::vector<float> bias;             // (experts, rows); empty: none
  size_t num_bytes() const override;
  const float* bias_of(int expert) const {
    return bias.empty() ? nullptr : bias.data() + expert * matrices[0].rows;
  }
};

// (rows, cols) in row-major order, bfloat16 where the view has it, else float32.
PackedTable pack_table(const MatrixView& view, bool to_bf16);

Result<std::unique_ptr<PackedWeight>> pack_linear(const LinearWeights& weights, ThreadPool& pool);
Result<std::unique_ptr<PackedWeight>> pack_experts(const ExpertGateUpWeights& weights,
                                                   ThreadPool& pool);
Result<std::unique_ptr<PackedWeight>> pack_experts(const ExpertDownWeights& weights,
                                                   ThreadPool& pool);

}  // namespace medley::cpu
