#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "cuda/check.h"
#include "cuda/pack_matrix.h"
#include "cuda/packed_weights.h"

// What the device packs must be, to the bit, what pack_matrix packs on the host.

namespace medley::testing {
namespace {

using cuda::CudaMatrices;
using cuda::MatrixLayout;
using cuda::SourceRow;

std::vector<uint8_t> device_bytes(const cuda::DeviceBuffer& buffer) {
  std::vector<uint8_t> bytes(buffer.num_bytes());
  MEDLEY_CUDA_CHECK(cudaMemcpy(bytes.data(), buffer.data(), bytes.size(), cudaMemcpyDeviceToHost));
  return bytes;
}

template <class Source>
void expect_packed(const CudaMatrices& packed, const Source& source) {
  const std::vector<uint8_t> found = device_bytes(packed.weights);
  const size_t size = packed.layout.matrix_bytes();
  ASSERT_EQ(found.size(), size * packed.num_experts);
  std::vector<uint8_t> expected(size);
  for (int e = 0; e < packed.num_experts; ++e) {
    const cuda::RowSource rows = [&](int unit, int row) { return source(e, unit, row); };
    ASSERT_TRUE(cuda::pack_matrix(packed.layout, rows, expected.data()).ok());
    ASSERT_EQ(std::memcmp(expected.data(), found.data() + e * size, size), 0) << "matrix " << e;
  }
}

// Random bits: NaN, infinities and subnormal numbers included.
std::vector<uint8_t> random_bytes(size_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(engine() >> 8);
  return bytes;
}

struct Sizes {
  int64_t rows;
  int64_t cols;
};
constexpr Sizes kSizes[] = {{16, 128}, {1, 8}, {19, 40}, {37, 33}, {300, 2880}, {1000, 96}};

class PackTest : public ::testing::Test {
 protected:
  MatrixView view(DType dtype, const Sizes& sizes) {
    data_.push_back(random_bytes(sizes.rows * sizes.cols * size_of(dtype), data_.size()));
    return {.dtype = dtype,
            .data = data_.back().data(),
            .rows = sizes.rows,
            .cols = sizes.cols,
            .row_stride = sizes.cols};
  }
  // Rows of every other row of the data.
  MatrixView mxfp4(const Sizes& sizes, int64_t first) {
    if (first == 0) {
      data_.push_back(random_bytes(sizes.rows * sizes.cols, data_.size()));
      scales_.push_back(random_bytes(2 * sizes.rows * sizes.cols / 32, data_.size()));
      for (uint8_t& scale : scales_.back()) scale %= 193;
    }
    return {.format = WeightFormat::kMxfp4,
            .data = data_.back().data() + first * sizes.cols / 2,
            .scales = scales_.back().data() + first * sizes.cols / 32,
            .rows = sizes.rows,
            .cols = sizes.cols,
            .row_stride = sizes.cols,
            .scale_row_stride = 2 * sizes.cols / 32};
  }
  template <class Weights>
  std::unique_ptr<PackedWeight> pack_experts(const Weights& weights) {
    return cuda::pack_experts(packer_, weights).value();
  }

  std::vector<std::vector<uint8_t>> data_, scales_;
  cuda::WeightPacker packer_;
};

TEST_F(PackTest, LinearOfEachType) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const Sizes& sizes : kSizes) {
      const MatrixView matrix = view(dtype, sizes);
      const auto packed = cuda::pack_linear(packer_, {.parts = {matrix}, .biases = {}}).value();
      expect_packed(static_cast<const CudaMatrices&>(*packed), [&](int, int unit, int row) {
        const int64_t at = int64_t{unit} * 16 + row;
        return at < matrix.rows ? SourceRow{&matrix, at} : SourceRow{};
      });
    }
  }
}

TEST_F(PackTest, LinearOfPartsOfSeveralTypes) {
  const std::vector<MatrixView> parts = {view(DType::kBF16, {50, 72}), view(DType::kF16, {7, 72}),
                                         view(DType::kF32, {9, 72})};
  const auto packed = cuda::pack_linear(packer_, {.parts = parts, .biases = {}}).value();
  expect_packed(static_cast<const CudaMatrices&>(*packed), [&](int, int unit, int row) {
    const int64_t at = int64_t{unit} * 16 + row;
    if (at < 50) return SourceRow{&parts[0], at};
    if (at < 57) return SourceRow{&parts[1], at - 50};
    return at < 66 ? SourceRow{&parts[2], at - 57} : SourceRow{};
  });
}

SourceRow gate_up_row(const ExpertGateUpWeights& weights, int expert, int unit, int row) {
  const MatrixView& matrix = row < 8 ? weights.gate[expert] : weights.up[expert];
  const int64_t at = int64_t{unit} * 8 + row % 8;
  return at < matrix.rows ? SourceRow{&matrix, at} : SourceRow{};
}

SourceRow down_row(const ExpertDownWeights& weights, int expert, int unit, int row) {
  const int64_t at = int64_t{unit} * 16 + row;
  return at < weights.down[expert].rows ? SourceRow{&weights.down[expert], at} : SourceRow{};
}

TEST_F(PackTest, ExpertsOfInterleavedMxfp4) {
  for (const Sizes& sizes : {Sizes{8, 64}, Sizes{17, 96}, Sizes{500, 2880}, Sizes{64, 640}}) {
    ExpertGateUpWeights gate_up;
    ExpertDownWeights down;
    for (int e = 0; e < 3; ++e) {
      gate_up.gate.push_back(mxfp4(sizes, 0));
      gate_up.up.push_back(mxfp4(sizes, 1));
      down.down.push_back(mxfp4(sizes, 0));
    }
    const auto packed_gate_up = pack_experts(gate_up);
    expect_packed(static_cast<const CudaMatrices&>(*packed_gate_up),
                  [&](int e, int unit, int row) { return gate_up_row(gate_up, e, unit, row); });
    const auto packed_down = pack_experts(down);
    expect_packed(static_cast<const CudaMatrices&>(*packed_down),
                  [&](int e, int unit, int row) { return down_row(down, e, unit, row); });
  }
}

// (E, H, 2I) with gate and up interleaved, (E, I, H).
TEST_F(PackTest, ExpertsOfTransposedMatrices) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    constexpr int64_t kInner = 150;
    constexpr int64_t kHidden = 200;
    ExpertGateUpWeights gate_up;
    ExpertDownWeights down;
    for (int e = 0; e < 2; ++e) {
      MatrixView gate = view(dtype, {kInner, 2 * kHidden});
      gate.cols = kHidden;
      gate.row_stride = 2;
      gate.col_stride = 2 * kInner;
      MatrixView up = gate;
      up.data = static_cast<const uint8_t*>(gate.data) + size_of(dtype);
      gate_up.gate.push_back(gate);
      gate_up.up.push_back(up);
      MatrixView transposed = view(dtype, {kHidden, kInner});
      transposed.row_stride = 1;
      transposed.col_stride = kHidden;
      down.down.push_back(transposed);
    }
    const auto packed_gate_up = pack_experts(gate_up);
    expect_packed(static_cast<const CudaMatrices&>(*packed_gate_up),
                  [&](int e, int unit, int row) { return gate_up_row(gate_up, e, unit, row); });
    const auto packed_down = pack_experts(down);
    expect_packed(static_cast<const CudaMatrices&>(*packed_down),
                  [&](int e, int unit, int row) { return down_row(down, e, unit, row); });
  }
}

TEST_F(PackTest, TableOfEachType) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const MatrixView table = view(dtype, {1003, 72});
    const auto packed = cuda::pack_table(packer_, table).value();
    const std::vector<uint8_t> found =
        device_bytes(static_cast<const cuda::CudaTable&>(*packed).values);
    std::vector<uint16_t> expected;
    for (int64_t row = 0; row < table.rows; ++row) {
      for (int64_t col = 0; col < table.cols; ++col) {
        expected.push_back(float_to_bf16(element(table, row, col)));
      }
    }
    ASSERT_EQ(found.size(), expected.size() * sizeof(uint16_t));
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size()), 0) << to_string(dtype);
  }
}

TEST_F(PackTest, RefusesScalesItCannotHoldAndSaysWhere) {
  ExpertDownWeights down;
  for (int e = 0; e < 3; ++e) down.down.push_back(mxfp4({300, 64}, 0));
  scales_[1][2 * 2 * 123 + 1] = 255;  // every other row, two blocks a row
  const auto nan = cuda::pack_experts(packer_, down);
  ASSERT_FALSE(nan.ok());
  EXPECT_EQ(nan.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(nan.error().message,
            "expert 1, row 123, block 1: the E8M0 scale is 255 (NaN), expected at most 192");
  scales_[1][2 * 2 * 123 + 1] = 193;
  const auto large = cuda::pack_experts(packer_, down);
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.error().code, ErrorCode::kUnsupported);
  scales_[1][2 * 2 * 123 + 1] = 192;
  EXPECT_TRUE(cuda::pack_experts(packer_, down).ok());
}

TEST_F(PackTest, GoesOnAfterItWasFinished) {
  for (int i = 0; i < 2; ++i) {
    const MatrixView matrix = view(DType::kBF16, {2000, 1024});
    const auto packed = cuda::pack_linear(packer_, {.parts = {matrix}, .biases = {}}).value();
    expect_packed(static_cast<const CudaMatrices&>(*packed), [&](int, int unit, int row) {
      return SourceRow{&matrix, int64_t{unit} * 16 + row};
    });
    const PackingTimes times = packer_.finish();
    EXPECT_GT(times.read_s, 0.0);
    EXPECT_GT(times.upload_s, 0.0);
    EXPECT_GT(times.pack_s, 0.0);
  }
}

}  // namespace
}  // namespace medley::testing
