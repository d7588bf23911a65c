#include "cpu/packed_weights.h"

#include <cmath>
#include <cstring>
#include <string_view>

namespace medley::cpu {
namespace {

// A block's largest element is 6 times its scale, so exponents from 254 on may leave float32's
// range; 255 is E8M0's NaN.
Result<void> check_mxfp4(const MatrixView& view, std::string_view where) {
  if (view.format != WeightFormat::kMxfp4) return {};
  if (view.cols % 32 != 0) {
    return invalid_argument(
        fmt::format("{}: MXFP4 needs a multiple of 32 columns, found {}", where, view.cols));
  }
  std::vector<float> row(view.cols);
  for (int64_t r = 0; r < view.rows; ++r) {
    const uint8_t* scales = view.scales + r * view.scale_row_stride;
    bool extreme = false;
    for (int64_t block = 0; block < view.cols / 32; ++block) {
      if (scales[block] == 255) {
        return invalid_argument(
            fmt::format("{}, row {}, block {}: the E8M0 scale is 255 (NaN), expected at most 254",
                        where, r, block));
      }
      extreme |= scales[block] >= 253;
    }
    if (!extreme) continue;
    row_to_float(view, r, row.data());
    for (int64_t c = 0; c < view.cols; ++c) {
      if (!std::isfinite(row[c])) {
        return invalid_argument(fmt::format(
            "{}, row {}, column {}: the MXFP4 element times its E8M0 scale {} is not finite", where,
            r, c, scales[c / 32]));
      }
    }
  }
  return {};
}

std::vector<float> concat(std::span<const VectorView> vectors) {
  std::vector<float> out;
  for (const VectorView& vector : vectors) {
    for (int64_t i = 0; i < vector.size; ++i) out.push_back(element(vector, i));
  }
  return out;
}

struct Part {
  std::string_view name;
  const std::vector<MatrixView>* matrices;
  const std::vector<VectorView>* biases;
};

Result<std::unique_ptr<PackedWeight>> pack_expert_parts(std::span<const Part> parts,
                                                        ThreadPool& pool) {
  auto packed = std::make_unique<PackedExperts>();
  const size_t num_experts = parts[0].matrices->size();
  for (size_t e = 0; e < num_experts; ++e) {
    std::vector<MatrixView> stack;
    for (const Part& part : parts) {
      MEDLEY_CHECK_EQ(part.matrices->size(), num_experts);
      stack.push_back((*part.matrices)[e]);
      MEDLEY_TRY(check_mxfp4(stack.back(), fmt::format("expert {}, {}", e, part.name)));
      if (part.biases->empty()) continue;
      MEDLEY_CHECK_EQ((*part.biases)[e].size, stack.back().rows);
      const std::vector<float> bias = concat({&(*part.biases)[e], 1});
      packed->bias.insert(packed->bias.end(), bias.begin(), bias.end());
    }
    packed->matrices.push_back(pack_matrix(stack, /*to_bf16=*/false, &pool));
    MEDLEY_CHECK_EQ(packed->matrices.back().rows, packed->matrices[0].rows);
  }
  return std::unique_ptr<PackedWeight>(std::move(packed));
}

}  // namespace

size_t PackedExperts::num_bytes() const {
  size_t sum = bias.size() * sizeof(float);
  for (const PackedMatrix& matrix : matrices) sum += matrix.data.num_bytes();
  return sum;
}

PackedTable pack_table(const MatrixView& view, bool to_bf16) {
  PackedTable table;
  table.rows = view.rows;
  table.cols = view.cols;
  table.dtype = view.dtype == DType::kBF16 || to_bf16 ? DType::kBF16 : DType::kF32;
  table.data = AlignedBuffer(view.rows * view.cols * size_of(table.dtype));
  std::vector<float> row(view.cols);
  for (int64_t r = 0; r < view.rows; ++r) {
    row_to_float(view, r, row.data());
    for (int64_t c = 0; c < view.cols; ++c) {
      if (table.dtype == DType::kBF16) {
        static_cast<uint16_t*>(table.data.data())[r * view.cols + c] = float_to_bf16(row[c]);
      } else {
        static_cast<float*>(table.data.data())[r * view.cols + c] = row[c];
      }
    }
  }
  return table;
}

Result<std::unique_ptr<PackedWeight>> pack_linear(const LinearWeights& weights, ThreadPool& pool) {
  MEDLEY_CHECK(!weights.parts.empty(), "a linear without parts");
  for (size_t i = 0; i < weights.parts.size(); ++i) {
    MEDLEY_TRY(check_mxfp4(weights.parts[i], fmt::format("part {}", i)));
  }
  auto packed = std::make_unique<PackedLinear>();
  packed->matrix = pack_matrix(weights.parts, /*to_bf16=*/false, &pool);
  packed->bias = concat(weights.biases);
  if (!packed->bias.empty()) {
    MEDLEY_CHECK_EQ(static_cast<int64_t>(packed->bias.size()), packed->matrix.rows);
  }
  return std::unique_ptr<PackedWeight>(std::move(packed));
}

Result<std::unique_ptr<PackedWeight>> pack_experts(const ExpertGateUpWeights& weights,
                                                   ThreadPool& pool) {
  const Part parts[] = {{"gate", &weights.gate, &weights.gate_bias},
                        {"up", &weights.up, &weights.up_bias}};
  return pack_expert_parts(parts, pool);
}

Result<std::unique_ptr<PackedWeight>> pack_experts(const ExpertDownWeights& weights,
                                                   ThreadPool& pool) {
  const Part parts[] = {{"down", &weights.down, &weights.bias}};
  return pack_expert_parts(parts, pool);
}

}  // namespace medley::cpu
