#include "cuda/expert_gemm.h"

#include <gtest/gtest.h>

namespace medley::cuda {
namespace {

constexpr size_t kLimit = size_t{225} * 1024;

TEST(MatrixLayout, GptOssExperts) {
  const MatrixLayout layout = make_matrix_layout(StreamFormat::kMxfp4, 5760, 2880);
  EXPECT_EQ(layout.num_units, 360);
  EXPECT_EQ(layout.num_stages * layout.stage_blocks, 45);
  EXPECT_EQ(layout.matrix_bytes(), 5760u * 2880 / 2 + 5760u * 2880 / 32)
      << "4.25 bits a value, nothing more";
}

TEST(MatrixLayout, PadsToWholeBlocksAndUnits) {
  const MatrixLayout layout = make_matrix_layout(StreamFormat::kBF16, 17, 40);
  EXPECT_EQ(layout.num_units, 2);
  EXPECT_EQ(layout.padded_cols, 64);
  EXPECT_EQ(layout.matrix_bytes(), 32u * 64 * 2);
}

ExpertGemmProblem problem(StreamFormat format, int in_size, int rows) {
  return {.layout = make_matrix_layout(format, 2880, in_size),
          .in_size = in_size,
          .max_tile_rows = rows,
          .lora = true,
          .shared_limit = kLimit};
}

TEST(SelectExpertGemm, FitsAndKeepsRowsOffEachOthersBanks) {
  for (const StreamFormat format : {StreamFormat::kBF16, StreamFormat::kMxfp4}) {
    for (const int in_size : {64, 96, 768, 2048, 2880, 4096}) {
      for (const int rows : {1, 8, 9, 64}) {
        const auto config = select_expert_gemm(problem(format, in_size, rows));
        ASSERT_TRUE(config.ok()) << in_size << " x " << rows;
        EXPECT_LE(config->shared_bytes, kLimit) << config->to_string();
        EXPECT_EQ(config->row_stride % 128, 64) << config->to_string();
        EXPECT_GE(config->row_stride, in_size * 2) << config->to_string();
        EXPECT_GE(config->num_slots, 2) << config->to_string();
        EXPECT_LE(config->num_slots, 8) << config->to_string();
      }
    }
  }
}

TEST(SelectExpertGemm, GptOssRunsSixteenWarpsOfWhichFourShrink) {
  ExpertGemmProblem gpt_oss = problem(StreamFormat::kMxfp4, 2880, 64);
  const auto with_lora = select_expert_gemm(gpt_oss);
  ASSERT_TRUE(with_lora.ok());
  EXPECT_EQ(with_lora->num_warps, 12);
  EXPECT_EQ(with_lora->slot_bytes, 5 * 544);
  gpt_oss.lora = false;
  EXPECT_EQ(select_expert_gemm(gpt_oss)->num_warps, 16);
}

TEST(SelectExpertGemm, SpreadsUnitsOfFewRowsOnly) {
  for (const int rows : {1, 2, 3, 64}) {
    const auto config = select_expert_gemm(problem(StreamFormat::kMxfp4, 2880, rows));
    ASSERT_TRUE(config.ok());
    if (rows > kSpreadRows) {
      EXPECT_EQ(config->spread_units, 0) << rows;
      continue;
    }
    EXPECT_GT(config->spread_units, 0) << rows;
    EXPECT_LE(config->shared_bytes, kLimit) << rows;
    EXPECT_EQ(config->x_bytes, 2 * rows * config->row_stride) << rows;
  }
}

TEST(SelectExpertGemm, RefusesWithBothNumbers) {
  const auto wide = select_expert_gemm(problem(StreamFormat::kBF16, 32768, 16));
  ASSERT_FALSE(wide.ok());
  EXPECT_EQ(wide.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(wide.error().message.find("32768"), std::string::npos) << wide.error().message;
  EXPECT_FALSE(select_expert_gemm(problem(StreamFormat::kBF16, 100, 16)).ok());
}

}  // namespace
}  // namespace medley::cuda
