#pragma once

#include "backend/backend.h"
#include "cuda/matrix_layout.h"
#include "cuda/memory.h"
#include "cuda/weight_packer.h"

namespace medley::cuda {

class CudaVector : public PackedWeight {
 public:
  size_t num_bytes() const override { return values.num_bytes(); }
  DeviceBuffer values;  // float32
  int64_t size = 0;
};

// One matrix per expert, all in one layout; a dense weight is one expert.
class CudaMatrices : public PackedWeight {
 public:
  size_t num_bytes() const override { return weights.num_bytes() + bias.num_bytes(); }
  MatrixLayout layout;
  int num_experts = 0;
  int64_t in_size = 0;
  int64_t out_size = 0;  // rows of one matrix; of gate alone where gate and up share units
  DeviceBuffer weights;
  DeviceBuffer bias;  // (experts, units, 16) float32, or empty
};

// An embedding as the checkpoint has it.
class CudaTable : public PackedWeight {
 public:
  size_t num_bytes() const override { return values.num_bytes(); }
  DeviceBuffer values;  // (rows, cols) bfloat16
  int64_t rows = 0;
  int64_t cols = 0;
};

Result<std::unique_ptr<PackedWeight>> pack_table(WeightPacker& packer, const MatrixView& table);
Result<std::unique_ptr<PackedWeight>> pack_vector(const VectorView& vector);
Result<std::unique_ptr<PackedWeight>> pack_linear(WeightPacker& packer,
                                                  const LinearWeights& weights);
Result<std::unique_ptr<PackedWeight>> pack_experts(WeightPacker& packer,
                                                   const ExpertGateUpWeights& weights);
Result<std::unique_ptr<PackedWeight>> pack_experts(WeightPacker& packer,
                                                   const ExpertDownWeights& weights);

inline StreamFormat stream_format(WeightFormat format) {
  return format == WeightFormat::kMxfp4 ? StreamFormat::kMxfp4 : StreamFormat::kBF16;
}
// Gate and up share units of 8 + 8 rows.
inline MatrixLayout gate_up_layout(StreamFormat format, int64_t inner, int64_t hidden) {
  return make_matrix_layout(format, (inner + 7) / 8 * 16, hidden);
}

}  // namespace medley::cuda
