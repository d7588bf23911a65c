#include "cuda/stage_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace medley::cuda {
namespace {

// Rows of 16 bytes of codes and, padded to 16 bytes, one scale.
TEST(StageRows, Mxfp4RowsAndPadding) {
  std::vector<uint8_t> codes(size_t{3} * 16);
  std::iota(codes.begin(), codes.end(), 1);
  const std::vector<uint8_t> scales = {100, 101, 102};
  const MatrixView view{.format = WeightFormat::kMxfp4,
                        .data = codes.data(),
                        .scales = scales.data(),
                        .rows = 3,
                        .cols = 32,
                        .row_stride = 16,
                        .scale_row_stride = 1};
  const StagedLayout layout = StagedLayout::of(RowType::kMxfp4, 32);
  EXPECT_EQ(layout.pitch, 16);
  EXPECT_EQ(layout.scale_pitch, 16);
  const std::vector<SourceRow> rows = {{&view, 2}, {}, {&view, 0}};
  std::vector<uint8_t> out(layout.num_bytes(3), 0xee);
  ASSERT_TRUE(stage_rows(layout, rows, out.data()).ok());
  EXPECT_EQ(out[0], 33);  // row 2 begins after 32 codes
  EXPECT_EQ(out[15], 48);
  for (int i = 16; i < 32; ++i) EXPECT_EQ(out[i], 0);
  EXPECT_EQ(out[32], 1);
  const StagedRows staged = layout.rows_at(out.data(), 3);
  EXPECT_EQ(staged.scales, out.data() + 48);
  EXPECT_EQ(staged.scales[0], 102);
  EXPECT_EQ(staged.scales[16], kPaddingScale);
  EXPECT_EQ(static_cast<uint8_t>(staged.scales[16] + kScaleBias), 1);
  EXPECT_EQ(staged.scales[32], 100);
}

// Columns that lie apart, over more than one tile of them.
TEST(StageRows, TransposedRows) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kCols = 70;
  std::vector<uint16_t> values(kRows * kCols);
  std::iota(values.begin(), values.end(), 0);
  const MatrixView view{.dtype = DType::kBF16,
                        .data = values.data(),
                        .rows = kRows,
                        .cols = kCols,
                        .row_stride = 1,
                        .col_stride = kRows};
  const StagedLayout layout = StagedLayout::of(RowType::kBF16, kCols);
  EXPECT_EQ(layout.pitch, 144);  // 140 bytes, aligned to 16
  const std::vector<SourceRow> rows = {{&view, 1}, {}};
  std::vector<uint8_t> out(layout.num_bytes(2), 0xee);
  ASSERT_TRUE(stage_rows(layout, rows, out.data()).ok());
  for (int64_t c = 0; c < kCols; ++c) {
    uint16_t value = 0;
    std::memcpy(&value, out.data() + 2 * c, 2);
    EXPECT_EQ(value, 3 * c + 1);
    std::memcpy(&value, out.data() + 144 + 2 * c, 2);
    EXPECT_EQ(value, 0);
  }
}

TEST(StageRows, RowsOfSeveralTypesAreWidened) {
  const std::vector<uint16_t> bf16 = {0x3f80, 0x4000};  // 1, 2
  const std::vector<uint16_t> f16 = {0x4200, 0xc400};   // 3, -4
  const MatrixView matrices[] = {
      {.dtype = DType::kBF16, .data = bf16.data(), .rows = 1, .cols = 2, .row_stride = 2},
      {.dtype = DType::kF16, .data = f16.data(), .rows = 1, .cols = 2, .row_stride = 2}};
  EXPECT_EQ(common_row_type({matrices, 1}), RowType::kBF16);
  EXPECT_EQ(common_row_type(matrices), RowType::kF32);
  const StagedLayout layout = StagedLayout::of(RowType::kF32, 2);
  const std::vector<SourceRow> rows = {{&matrices[0], 0}, {&matrices[1], 0}};
  std::vector<uint8_t> out(layout.num_bytes(2));
  ASSERT_TRUE(stage_rows(layout, rows, out.data()).ok());
  float values[8];
  std::memcpy(values, out.data(), sizeof(values));
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 2.0f);
  EXPECT_EQ(values[4], 3.0f);
  EXPECT_EQ(values[5], -4.0f);
}

}  // namespace
}  // namespace medley::cuda
