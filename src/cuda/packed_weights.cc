#include "cuda/packed_weights.h"

#include <fmt/format.h>

#include <functional>

namespace medley::cuda {
namespace {

constexpr int kPairRows = kUnitRows / 2;

Result<DeviceBuffer> pack_matrices(WeightPacker& packer, PackJob job) {
  MEDLEY_TRY_ASSIGN(DeviceBuffer buffer,
                    DeviceBuffer::allocate(job.layout.matrix_bytes() * job.num_matrices));
  job.out = buffer.as<uint8_t>();
  MEDLEY_TRY(packer.pack(job));
  return buffer;
}

// bias_of(matrix, unit, row)
Result<DeviceBuffer> pack_bias(const MatrixLayout& layout, int count,
                               const std::function<float(int, int, int)>& bias_of) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(count) * layout.num_units * kUnitRows);
  for (int i = 0; i < count; ++i) {
    for (int unit = 0; unit < layout.num_units; ++unit) {
      for (int row = 0; row < kUnitRows; ++row) values.push_back(bias_of(i, unit, row));
    }
  }
  MEDLEY_TRY_ASSIGN(DeviceBuffer buffer, DeviceBuffer::allocate(values.size() * sizeof(float)));
  buffer.copy_from_host(values.data(), values.size() * sizeof(float));
  return buffer;
}

float bias_or_zero(const VectorView& bias, int64_t row) {
  return row < bias.size ? element(bias, row) : 0.0f;
}

}  // namespace

Result<std::unique_ptr<PackedWeight>> pack_table(WeightPacker& packer, const MatrixView& table) {
  auto packed = std::make_unique<CudaTable>();
  packed->rows = table.rows;
  packed->cols = table.cols;
  MEDLEY_TRY_ASSIGN(packed->values,
                    DeviceBuffer::allocate(table.rows * table.cols * sizeof(uint16_t)));
  MEDLEY_TRY(packer.pack_rows(table, packed->values.as<uint16_t>()));
  return std::unique_ptr<PackedWeight>(std::move(packed));
}

Result<std::unique_ptr<PackedWeight>> pack_vector(const VectorView& vector) {
  std::vector<float> values(vector.size);
  for (int64_t i = 0; i < vector.size; ++i) values[i] = element(vector, i);
  auto packed = std::make_unique<CudaVector>();
  MEDLEY_TRY_ASSIGN(packed->values, DeviceBuffer::allocate(values.size() * sizeof(float)));
  packed->values.copy_from_host(values.data(), values.size() * sizeof(float));
  packed->size = vector.size;
  return std::unique_ptr<PackedWeight>(std::move(packed));
}

Result<std::unique_ptr<PackedWeight>> pack_linear(WeightPacker& packer,
                                                  const LinearWeights& weights) {
  MEDLEY_CHECK(!weights.parts.empty());
  if (weights.gate_up) {
    MEDLEY_CHECK_EQ(weights.parts.size(), 2u);
    if (weights.parts[0].format != WeightFormat::kFloat) {
      return unsupported("dense weights on CUDA: floating point only, found MXFP4");
    }
    ExpertGateUpWeights one = {.gate = {weights.parts[0]}, .up = {weights.parts[1]}};
    if (!weights.biases.empty()) {
      one.gate_bias = {weights.biases[0]};
      one.up_bias = {weights.biases[1]};
    }
    return pack_experts(packer, one);
  }
  auto packed = std::make_unique<CudaMatrices>();
  packed->num_experts = 1;
  packed->in_size = weights.parts[0].cols;
  for (const MatrixView& part : weights.parts) {
    if (part.format != WeightFormat::kFloat) {
      return unsupported("dense weights on CUDA: floating point only, found MXFP4");
    }
    MEDLEY_CHECK_EQ(part.cols, packed->in_size);
    packed->out_size += part.rows;
  }
  packed->layout = make_matrix_layout(StreamFormat::kBF16, packed->out_size, packed->in_size);
  const auto locate = [&](int64_t row) {
    size_t part = 0;
    while (part < weights.parts.size() && row >= weights.parts[part].rows) {
      row -= weights.parts[part++].rows;
    }
    return std::pair(part, row);
  };
  MEDLEY_TRY_ASSIGN(packed->weights,
                    pack_matrices(packer, {.layout = packed->layout,
                                           .type = common_row_type(weights.parts),
                                           .cols = packed->in_size,
                                           .source = [&](int, int unit, int row) {
                                             const auto [part, at] = locate(unit * kUnitRows + row);
                                             if (part == weights.parts.size()) return SourceRow{};
                                             return SourceRow{&weights.parts[part], at};
                                           }}));
  if (!weights.biases.empty()) {
    MEDLEY_CHECK_EQ(weights.biases.size(), weights.parts.size());
    MEDLEY_TRY_ASSIGN(packed->bias, pack_bias(packed->layout, 1, [&](int, int unit, int row) {
                        const auto [part, at] = locate(unit * kUnitRows + row);
                        return part == weights.parts.size() ? 0.0f
                                                            : element(weights.biases[part], at);
                      }));
  }
  return std::unique_ptr<PackedWeight>(std::move(packed));
}

Result<std::unique_ptr<PackedWeight>> pack_experts(WeightPacker& packer,
                                                   const ExpertGateUpWeights& weights) {
  const int count = static_cast<int>(weights.gate.size());
  MEDLEY_CHECK_GT(count, 0);
  MEDLEY_CHECK_EQ(weights.up.size(), weights.gate.size());
  auto packed = std::make_unique<CudaMatrices>();
  packed->num_experts = count;
  packed->in_size = weights.gate[0].cols;
  packed->out_size = weights.gate[0].rows;
  packed->layout =
      gate_up_layout(stream_format(weights.gate[0].format), packed->out_size, packed->in_size);
  std::vector<MatrixView> matrices = weights.gate;
  matrices.insert(matrices.end(), weights.up.begin(), weights.up.end());
  MEDLEY_TRY_ASSIGN(
      packed->weights,
      pack_matrices(packer, {.layout = packed->layout,
                             .type = common_row_type(matrices),
                             .cols = packed->in_size,
                             .num_matrices = count,
                             .source = [&](int expert, int unit, int row) {
                               const MatrixView& matrix =
                                   row < kPairRows ? weights.gate[expert] : weights.up[expert];
                               const int64_t at = unit * kPairRows + row % kPairRows;
                               return at < matrix.rows ? SourceRow{&matrix, at} : SourceRow{};
                             }}));
  if (!weights.gate_bias.empty()) {
    MEDLEY_TRY_ASSIGN(
        packed->bias, pack_bias(packed->layout, count, [&](int expert, int unit, int row) {
          return bias_or_zero(row < kPairRows ? weights.gate_bias[expert] : weights.up_bias[expert],
                              unit * kPairRows + row % kPairRows);
        }));
  }
  return std::unique_ptr<PackedWeight>(std::move(packed));
}

Result<std::unique_ptr<PackedWeight>> pack_experts(WeightPacker& packer,
                                                   const ExpertDownWeights& weights) {
  const int count = static_cast<int>(weights.down.size());
  MEDLEY_CHECK_GT(count, 0);
  auto packed = std::make_unique<CudaMatrices>();
  packed->num_experts = count;
  packed->in_size = weights.down[0].cols;
  packed->out_size = weights.down[0].rows;
  packed->layout =
      make_matrix_layout(stream_format(weights.down[0].format), packed->out_size, packed->in_size);
  MEDLEY_TRY_ASSIGN(packed->weights,
                    pack_matrices(packer, {.layout = packed->layout,
                                           .type = common_row_type(weights.down),
                                           .cols = packed->in_size,
                                           .num_matrices = count,
                                           .source = [&](int expert, int unit, int row) {
                                             const MatrixView& matrix = weights.down[expert];
                                             const int64_t at = unit * kUnitRows + row;
                                             return at < matrix.rows ? SourceRow{&matrix, at}
                                                                     : SourceRow{};
                                           }}));
  if (!weights.bias.empty()) {
    MEDLEY_TRY_ASSIGN(packed->bias,
                      pack_bias(packed->layout, count, [&](int expert, int unit, int row) {
                        return bias_or_zero(weights.bias[expert], unit * kUnitRows + row);
                      }));
  }
  return std::unique_ptr<PackedWeight>(std::move(packed));
}

}  // namespace medley::cuda
