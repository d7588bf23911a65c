#include "weights/expert_weights.h"

#include <fmt/format.h>

namespace medley {
namespace {

constexpr int64_t kMxBlock = 32;  // values that share a scale

// A (rows, cols) part of a float tensor, from element `begin` on.
MatrixView part_of(const ConstTensorView& tensor, int64_t begin, MatrixView layout) {
  layout.dtype = tensor.dtype;
  layout.data = at_element(tensor, begin);
  return layout;
}

// Biases are (E, 2I), gate and up interleaved, and (E, H).
void read_gpt_oss_biases(TensorReader& reader, const ModelSpec& spec, const std::string& prefix,
                         LayerWeights& layer) {
  const int64_t experts = spec.moe->num_experts;
  const int64_t inner = spec.moe->intermediate_size;
  const int64_t hidden = spec.hidden_size;
  const ConstTensorView gate_up =
      reader.floats(prefix + "experts.gate_up_proj_bias", Shape({experts, 2 * inner}));
  const ConstTensorView down =
      reader.floats(prefix + "experts.down_proj_bias", Shape({experts, hidden}));
  for (int64_t e = 0; e < experts; ++e) {
    VectorView half{.dtype = gate_up.dtype, .size = inner, .stride = 2};
    half.data = at_element(gate_up, e * 2 * inner);
    layer.expert_gate_up.gate_bias.push_back(half);
    half.data = at_element(gate_up, e * 2 * inner + 1);
    layer.expert_gate_up.up_bias.push_back(half);
    layer.expert_down.bias.push_back(
        {.dtype = down.dtype, .data = at_element(down, e * hidden), .size = hidden});
  }
}

void read_gpt_oss_bf16(TensorReader& reader, const ModelSpec& spec, const std::string& prefix,
                       LayerWeights& layer) {
  const int64_t experts = spec.moe->num_experts;
  const int64_t inner = spec.moe->intermediate_size;
  const int64_t hidden = spec.hidden_size;
  const ConstTensorView gate_up =
      reader.floats(prefix + "experts.gate_up_proj", Shape({experts, hidden, 2 * inner}));
  const ConstTensorView down =
      reader.floats(prefix + "experts.down_proj", Shape({experts, inner, hidden}));
  const MatrixView half{.rows = inner, .cols = hidden, .row_stride = 2, .col_stride = 2 * inner};
  const MatrixView whole{.rows = hidden, .cols = inner, .row_stride = 1, .col_stride = hidden};
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t begin = e * hidden * 2 * inner;
    layer.expert_gate_up.gate.push_back(part_of(gate_up, begin, half));
    layer.expert_gate_up.up.push_back(part_of(gate_up, begin + 1, half));
    layer.expert_down.down.push_back(part_of(down, e * inner * hidden, whole));
  }
}

// The blocks and scales of one projection, (E, rows, cols).
struct Mxfp4Tensor {
  ConstTensorView blocks;  // (E, rows, cols / 32, 16)
  ConstTensorView scales;  // (E, rows, cols / 32)

  // Every `step`-th row of expert `e`, from row `first` on.
  MatrixView rows_of(int64_t e, int64_t first, int64_t step) const {
    const int64_t rows = blocks.shape[1];
    const int64_t row_scales = blocks.shape[2];
    const int64_t row_bytes = row_scales * kMxBlock / 2;
    const int64_t begin = e * rows + first;
    return {.format = WeightFormat::kMxfp4,
            .dtype = DType::kU8,
            .data = at_byte(blocks.data, begin * row_bytes),
            .scales = static_cast<const uint8_t*>(at_byte(scales.data, begin * row_scales)),
            .rows = rows / step,
            .cols = row_scales * kMxBlock,
            .row_stride = step * row_bytes,
            .scale_row_stride = step * row_scales};
  }
};

Mxfp4Tensor read_mxfp4(TensorReader& reader, const std::string& name, const Shape& shape) {
  const int64_t scales = shape[2] / kMxBlock;
  return {reader.bytes(name + "_blocks", Shape({shape[0], shape[1], scales, kMxBlock / 2})),
          reader.bytes(name + "_scales", Shape({shape[0], shape[1], scales}))};
}

void read_gpt_oss_mxfp4(TensorReader& reader, const ModelSpec& spec, const std::string& prefix,
                        LayerWeights& layer) {
  const int64_t experts = spec.moe->num_experts;
  const int64_t inner = spec.moe->intermediate_size;
  const int64_t hidden = spec.hidden_size;
  const Mxfp4Tensor gate_up =
      read_mxfp4(reader, prefix + "experts.gate_up_proj", Shape({experts, 2 * inner, hidden}));
  const Mxfp4Tensor down =
      read_mxfp4(reader, prefix + "experts.down_proj", Shape({experts, hidden, inner}));
  for (int64_t e = 0; e < experts; ++e) {
    layer.expert_gate_up.gate.push_back(gate_up.rows_of(e, /*first=*/0, /*step=*/2));
    layer.expert_gate_up.up.push_back(gate_up.rows_of(e, /*first=*/1, /*step=*/2));
    layer.expert_down.down.push_back(down.rows_of(e, /*first=*/0, /*step=*/1));
  }
}

// As transformers 5 may save them: gate_up_proj (E, 2I, H), gate rows first, and down_proj (E, H,
// I).
void read_fused(TensorReader& reader, const ModelSpec& spec, const std::string& prefix,
                LayerWeights& layer) {
  const int64_t experts = spec.moe->num_experts;
  const int64_t inner = spec.moe->intermediate_size;
  const int64_t hidden = spec.hidden_size;
  const ConstTensorView gate_up =
      reader.floats(prefix + "experts.gate_up_proj", Shape({experts, 2 * inner, hidden}));
  const ConstTensorView down =
      reader.floats(prefix + "experts.down_proj", Shape({experts, hidden, inner}));
  const MatrixView half{.rows = inner, .cols = hidden, .row_stride = hidden};
  const MatrixView whole{.rows = hidden, .cols = inner, .row_stride = inner};
  for (int64_t e = 0; e < experts; ++e) {
    layer.expert_gate_up.gate.push_back(part_of(gate_up, 2 * e * inner * hidden, half));
    layer.expert_gate_up.up.push_back(part_of(gate_up, (2 * e + 1) * inner * hidden, half));
    layer.expert_down.down.push_back(part_of(down, e * hidden * inner, whole));
  }
}

void read_per_expert(TensorReader& reader, const ModelSpec& spec, const std::string& prefix,
                     LayerWeights& layer) {
  if (reader.has(prefix + "experts.gate_up_proj")) return read_fused(reader, spec, prefix, layer);
  const int64_t inner = spec.moe->intermediate_size;
  const int64_t hidden = spec.hidden_size;
  for (int e = 0; e < spec.moe->num_experts && reader.ok(); ++e) {
    const std::string expert = fmt::format("{}experts.{}.", prefix, e);
    layer.expert_gate_up.gate.push_back(reader.matrix(expert + "gate_proj.weight", inner, hidden));
    layer.expert_gate_up.up.push_back(reader.matrix(expert + "up_proj.weight", inner, hidden));
    layer.expert_down.down.push_back(reader.matrix(expert + "down_proj.weight", hidden, inner));
  }
}

}  // namespace

void read_experts(TensorReader& reader, const ModelSpec& spec, const std::string& prefix,
                  LayerWeights& layer) {
  switch (spec.names.experts) {
    case ExpertLayout::kPerExpert:
      return read_per_expert(reader, spec, prefix, layer);
    case ExpertLayout::kGptOssBf16:
      read_gpt_oss_biases(reader, spec, prefix, layer);
      return read_gpt_oss_bf16(reader, spec, prefix, layer);
    case ExpertLayout::kGptOssMxfp4:
      read_gpt_oss_biases(reader, spec, prefix, layer);
      return read_gpt_oss_mxfp4(reader, spec, prefix, layer);
  }
}

}  // namespace medley
