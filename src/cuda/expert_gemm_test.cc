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
  return {.role = GemmRole::kDown,
          .layout = make_matrix_layout(format, 2880, in_size),
          .in_size = in_size,
          .num_blocks = 132,
          .max_pairs = 4 * rows,
          .max_tile_rows = rows,
          .lora = true,
          .one_row = rows == 1,
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
        EXPECT_GE(config->num_warps, 1) << config->to_string();
        EXPECT_GE(config->shared_bytes, size_t{2} * config->num_warps * config->slot_bytes)
            << "two slots each: " << config->to_string();
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

TEST(SelectExpertGemm, SpreadsUnitsOfOneRowOnly) {
  for (const int rows : {1, 2, 64}) {
    const auto config = select_expert_gemm(problem(StreamFormat::kMxfp4, 2880, rows));
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(config->turn_units > 0, rows == 1) << rows;
    EXPECT_LE(config->shared_bytes, kLimit) << rows;
  }
  ExpertGemmProblem raw = problem(StreamFormat::kMxfp4, 2880, 1);
  raw.role = GemmRole::kGateUpRaw;
  EXPECT_EQ(select_expert_gemm(raw)->turn_units, 0);
}

// Of GPT-OSS 20B, on an H200.
ExpertGemmConfig one_row(GemmRole role, bool lora) {
  const bool down = role == GemmRole::kDown;
  return select_expert_gemm(
             {.role = role,
              .layout = make_matrix_layout(StreamFormat::kMxfp4, down ? 2880 : 5760, 2880),
              .in_size = 2880,
              .num_blocks = 132,
              .max_pairs = 4,
              .max_tile_rows = 1,
              .lora = lora,
              .one_row = true,
              .shared_limit = kLimit})
      .value();
}

TEST(SelectExpertGemm, BlocksOfBothProductsOfOneRowFitOnAMultiprocessor) {
  constexpr size_t kShared = size_t{228} * 1024;
  for (const bool lora : {false, true}) {
    // Static shared memory, and what the driver keeps.
    const size_t beside = size_t{lora ? 8u : 6u} * 1024;
    const ExpertGemmConfig gate_up = one_row(GemmRole::kGateUp, lora);
    const ExpertGemmConfig down = one_row(GemmRole::kDown, lora);
    EXPECT_LE(gate_up.shared_bytes + down.shared_bytes + 2 * beside, kShared);
    EXPECT_GT(2 * gate_up.shared_bytes + 2 * size_t{5} * 1024, kShared)
        << "two of one product must not share one";
    const int others = lora ? kShrinkWarps : 1;
    // The warps of a block are dealt out among four quarters, of 16,384 registers each.
    const int warps_of_quarter =
        (gate_up.num_warps + others + 3) / 4 + (down.num_warps + 1 + others + 3) / 4;
    EXPECT_LE(warps_of_quarter * 32 * (lora ? 72 : 64), 16384);
    EXPECT_GE(gate_up.turn_units, 11) << "a block's units in one turn";
    EXPECT_GE(down.turn_units, 6);
  }
}

TEST(SelectExpertGemm, FewSharesOfShrinksAreCutIntoRanges) {
  EXPECT_EQ(one_row(GemmRole::kDown, /*lora=*/true).shrink_ranges, kMaxShrinkRanges);
  EXPECT_EQ(select_expert_gemm(problem(StreamFormat::kMxfp4, 2880, 8))->shrink_ranges, 1);
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
