#include "weights/dummy_weights.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "weights/model_weights.h"

namespace medley {
namespace {

using Kind = DummyFill::Kind;

// Of what goes back into the residual stream, beside the embedding's 1.
constexpr float kResidualShare = 0.125f;
constexpr float kRouterSpread = 2.0f;
constexpr float kBias = 0.02f;
constexpr float kSink = 0.5f;

int64_t fan_in(const ModelSpec& spec, const Shape& shape) {
  if (shape.rank() == 4) return shape[2] * 32;  // (E, rows, blocks, 16)
  const bool transposed =
      spec.names.experts == ExpertLayout::kGptOssBf16 && shape.rank() == 3;  // (E, in, out)
  return shape[shape.rank() - (transposed ? 2 : 1)];
}

float matrix_sigma(const ModelSpec& spec, std::string_view name, int64_t inputs) {
  const float sigma = 1.0f / std::sqrt(static_cast<float>(inputs));
  if (name.ends_with("." + spec.names.router + ".weight")) return kRouterSpread * sigma;
  const bool residual = name.find("o_proj") != std::string_view::npos ||
                        name.find("down_proj") != std::string_view::npos;
  return residual ? kResidualShare * sigma : sigma;
}

DummyFill fill_of(const ModelSpec& spec, std::string_view name, const ConstTensorView& tensor) {
  const Shape& shape = tensor.shape;
  if (name.ends_with("_blocks")) return {.kind = Kind::kCodes, .dtype = DType::kU8};
  if (name.ends_with("_scales")) {
    return {.kind = Kind::kScales,
            .dtype = DType::kU8,
            .sigma = matrix_sigma(spec, name, shape[2] * 32)};
  }
  const DType dtype = tensor.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
  // Signs keep a tied head from answering every token with itself.
  if (name == spec.names.final_norm) return {.kind = Kind::kSigns, .dtype = dtype};
  if (name.ends_with("norm.weight")) return {.kind = Kind::kOnes, .dtype = dtype};
  float sigma = 0.0f;
  if (name.ends_with("bias")) {
    sigma = kBias;
  } else if (name.ends_with("sinks")) {
    sigma = kSink;
  } else if (name == spec.names.embed) {
    sigma = 1.0f;
  } else {
    sigma = matrix_sigma(spec, name, fan_in(spec, shape));
  }
  return {.kind = Kind::kNormal, .dtype = dtype, .sigma = sigma};
}

}  // namespace

Result<DummyWeights> DummyWeights::make(const ModelSpec& spec, uint64_t seed) {
  DummyWeights weights(seed);
  weights.tensors_ = wanted_tensors(spec);
  std::map<DummyFill, size_t> max_bytes;
  for (const auto& [name, tensor] : weights.tensors_) {
    const DummyFill fill = fill_of(spec, name, tensor);
    const size_t num_bytes = tensor.shape.num_elements() * size_of(fill.dtype);
    size_t& largest = max_bytes[fill];
    largest = std::max(largest, num_bytes);
  }
  MEDLEY_TRY(weights.pool_.make(max_bytes));
  for (auto& [name, tensor] : weights.tensors_) {
    tensor = weights.pool_.view(fill_of(spec, name, tensor), name, tensor.shape);
  }
  return weights;
}

}  // namespace medley
