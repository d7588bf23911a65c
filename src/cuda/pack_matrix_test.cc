#include "cuda/pack_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

// Reads packed bytes by matrix_layout.h's description and expects what row_to_float says.

namespace medley::cuda {
namespace {

float unpacked(const MatrixLayout& layout, const std::vector<uint8_t>& bytes, int64_t row,
               int64_t col) {
  const int width = block_cols(layout.format);
  const int64_t block = col / width;
  const uint8_t* stage = bytes.data() + row / 16 * layout.unit_bytes +
                         block / layout.stage_blocks * layout.stage_bytes;
  const int64_t index = block % layout.stage_blocks;
  const int64_t lane = row % 8 * 4 + col % 32 / 8;
  const int64_t high = row % 16 / 8;
  if (layout.format == StreamFormat::kBF16) {
    uint16_t bits = 0;
    std::memcpy(&bits, stage + index * 1024 + high * 512 + lane * 16 + col % 8 * 2, 2);
    return bf16_to_float(bits);
  }
  const int64_t place = col % 64 / 32 * 2 + high;
  uint32_t word = 0;
  std::memcpy(&word, stage + index * 512 + lane * 16 + place * 4, 4);
  const uint32_t pair = e2m1_pair(word, static_cast<int>(col % 8 / 2));
  const auto half = static_cast<uint16_t>(pair >> (16 * (col % 2)));
  const uint8_t scale =
      stage[layout.stage_blocks * int64_t{512} + index * 32 + row % 8 * 4 + place];
  return std::ldexp(bf16_to_float(half), scale - kScaleBias - 127 + kE2M1Exponent);
}

void expect_round_trip(StreamFormat format, const MatrixView& view) {
  const MatrixLayout layout = make_matrix_layout(format, view.rows, view.cols);
  std::vector<uint8_t> bytes(layout.matrix_bytes(), 0xee);
  const RowSource source = [&](int unit, int row) {
    const int64_t at = int64_t{unit} * kUnitRows + row;
    return at < view.rows ? SourceRow{&view, at} : SourceRow{};
  };
  ASSERT_TRUE(pack_matrix(layout, source, bytes.data()).ok());
  std::vector<float> expected(view.cols);
  for (int64_t row = 0; row < int64_t{layout.num_units} * kUnitRows; ++row) {
    if (row < view.rows) row_to_float(view, row, expected.data());
    for (int64_t col = 0; col < layout.padded_cols; ++col) {
      const float value = row < view.rows && col < view.cols ? expected[col] : 0.0f;
      ASSERT_EQ(unpacked(layout, bytes, row, col), value) << "row " << row << ", column " << col;
    }
  }
}

class PackMxFp4 : public ::testing::Test {
 protected:
  MatrixView view(int64_t rows, int64_t cols) {
    std::mt19937 engine(5);
    codes_.resize(rows * cols / 2);
    scales_.resize(rows * cols / 32);
    for (uint8_t& byte : codes_) byte = static_cast<uint8_t>(engine());
    for (uint8_t& scale : scales_) scale = static_cast<uint8_t>(110 + engine() % 20);
    return {.format = WeightFormat::kMxfp4,
            .data = codes_.data(),
            .scales = scales_.data(),
            .rows = rows,
            .cols = cols,
            .row_stride = cols / 2,
            .scale_row_stride = cols / 32};
  }
  std::vector<uint8_t> codes_, scales_;
};

TEST_F(PackMxFp4, WholeBlocks) { expect_round_trip(StreamFormat::kMxfp4, view(32, 640)); }
TEST_F(PackMxFp4, HalfABlockAndRowsOfPadding) {
  expect_round_trip(StreamFormat::kMxfp4, view(17, 96));
}

TEST_F(PackMxFp4, RefusesScalesItCannotHold) {
  const MatrixView matrix = view(16, 64);
  const MatrixLayout layout = make_matrix_layout(StreamFormat::kMxfp4, 16, 64);
  std::vector<uint8_t> bytes(layout.matrix_bytes());
  const RowSource source = [&](int, int row) { return SourceRow{&matrix, row}; };
  scales_[3] = 255;
  EXPECT_EQ(pack_matrix(layout, source, bytes.data()).error().code, ErrorCode::kInvalidArgument);
  scales_[3] = kMaxScaleByte + 1;
  EXPECT_EQ(pack_matrix(layout, source, bytes.data()).error().code, ErrorCode::kUnsupported);
  scales_[3] = kMaxScaleByte;
  EXPECT_TRUE(pack_matrix(layout, source, bytes.data()).ok());
}

TEST(PackBF16, OddSizes) {
  std::mt19937 engine(6);
  std::normal_distribution<float> normal;
  for (const auto& [rows, cols] : {std::pair(16, 128), std::pair(19, 40), std::pair(1, 288)}) {
    std::vector<float> values(static_cast<size_t>(rows) * cols);
    for (float& value : values) value = bf16_to_float(float_to_bf16(normal(engine)));
    expect_round_trip(StreamFormat::kBF16, {.dtype = DType::kF32,
                                            .data = values.data(),
                                            .rows = rows,
                                            .cols = cols,
                                            .row_stride = cols});
  }
}

}  // namespace
}  // namespace medley::cuda
