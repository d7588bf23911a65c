#include "cuda/split_lora.h"

#include <gtest/gtest.h>

namespace medley::cuda {
namespace {

constexpr SplitLoraProblem kGptOssGateUp = {
    .in_size = 2880, .num_units = 360, .max_pairs = 32, .rank_multiple = 32};

TEST(SplitLora, EvenKOnlyWhereAllWarpsHaveEquallyManyWholeBlocks) {
  int even = 0;
  for (const SplitShrinkConfig& config : legal_split_shrinks(kGptOssGateUp, {})) {
    EXPECT_GT(config.num_splits, 1);
    // 2880 columns are 90 blocks of 32.
    EXPECT_EQ(config.even_k, 90 % (config.num_warps * config.num_splits) == 0)
        << config.to_string();
    even += config.even_k;
  }
  EXPECT_GT(even, 0);
  for (const SplitShrinkConfig& config : legal_split_shrinks(kGptOssGateUp, {.even_k = false})) {
    EXPECT_FALSE(config.even_k);
  }
  // The last block of 2872 columns is not whole.
  for (const SplitShrinkConfig& config :
       legal_split_shrinks({.in_size = 2872, .num_units = 360, .max_pairs = 32}, {})) {
    EXPECT_FALSE(config.even_k) << config.to_string();
  }
}

TEST(SplitLora, ExpandIsEvenOnlyWhereTheCallerVouchesForTheRanks) {
  EXPECT_TRUE(select_split_expand(kGptOssGateUp, {}).even_k);
  EXPECT_FALSE(
      select_split_expand({.in_size = 2880, .num_units = 360, .max_pairs = 32}, {}).even_k);
}

TEST(SplitLora, LegalConfigsFitTheKernels) {
  for (const int in_size : {64, 96, 2880}) {
    const SplitLoraProblem problem = {.in_size = in_size, .num_units = 8, .max_pairs = 4};
    EXPECT_FALSE(legal_split_shrinks(problem, {}).empty()) << in_size;
    for (const SplitShrinkConfig& config : legal_split_shrinks(problem, {})) {
      EXPECT_LE(config.num_warps, kMaxSplitWarps);
      EXPECT_LE(config.num_splits, kMaxSplits);
      EXPECT_GE(config.rank_step, 1);
      EXPECT_GE(config.group, 1);
    }
    for (const SplitExpandConfig& config : legal_split_expands(problem, {})) {
      EXPECT_LE(config.num_warps, kMaxSplitWarps / 2);
    }
  }
}

TEST(SplitLora, EachSwitchOffChangesOneThing) {
  const SplitShrinkConfig shrink = select_split_shrink(kGptOssGateUp, {});
  EXPECT_EQ(shrink.split_k, SplitK::kFixedOrder);
  EXPECT_GT(shrink.num_splits, 1);
  EXPECT_EQ(select_split_shrink(kGptOssGateUp, {.split_k = SplitK::kOff}).num_splits, 1);
  EXPECT_EQ(select_split_shrink(kGptOssGateUp, {.split_k = SplitK::kAtomic}).num_splits,
            shrink.num_splits);
  EXPECT_EQ(shrink.group, kSplitGroup);
  EXPECT_EQ(select_split_shrink(kGptOssGateUp, {.swizzle = false}).group, 1);
  EXPECT_EQ(select_split_expand(kGptOssGateUp, {.swizzle = false}).group, 1);
  EXPECT_FALSE(select_split_expand(kGptOssGateUp, {.fused_add = false}).fused_add);
  EXPECT_FALSE(select_split_shrink(kGptOssGateUp, {.even_k = false}).even_k);
}

TEST(SplitLora, TheTableIsKeyedByShapeAndPaddedPairs) {
  const auto found = find_split_tuning(kGptOssGateUp);
  ASSERT_TRUE(found.has_value());
  EXPECT_GE(found->max_pairs, kGptOssGateUp.max_pairs);
  EXPECT_FALSE(find_split_tuning({.in_size = 2048, .num_units = 96, .max_pairs = 32}).has_value());
  EXPECT_FALSE(
      find_split_tuning({.in_size = 2880, .num_units = 360, .max_pairs = 4096}).has_value());
  // Without a row, and with tuning off, the configuration is the same for all.
  EXPECT_EQ(select_split_shrink(kGptOssGateUp, {.tuned = false}).num_warps,
            select_split_shrink({.in_size = 2048, .num_units = 96, .max_pairs = 32}, {}).num_warps);
}

TEST(SplitLora, BestSwitchesKeepTheOrderOfSums) {
  for (const int pairs : {1, 4, 5, 64, 256, 4096}) {
    const SplitSwitches best =
        best_split_switches({.in_size = 2880, .num_units = 360, .max_pairs = pairs});
    EXPECT_NE(best.split_k, SplitK::kAtomic);
    EXPECT_TRUE(best.even_k);
    EXPECT_TRUE(best.tuned);
  }
}

TEST(SplitLora, EveryRowOfTheTableIsLegal) {
  for (const int units : {360, 180}) {
    for (const int pairs : {4, 32, 64, 128, 256}) {
      const SplitLoraProblem problem = {.in_size = 2880, .num_units = units, .max_pairs = pairs};
      ASSERT_TRUE(find_split_tuning(problem).has_value()) << problem.to_string();
      for (const SplitK split_k : {SplitK::kOff, SplitK::kFixedOrder}) {
        const std::string chosen = select_split_shrink(problem, {.split_k = split_k}).to_string();
        bool legal = false;
        for (const SplitShrinkConfig& config : legal_split_shrinks(problem, {.split_k = split_k})) {
          legal |= config.to_string() == chosen;
        }
        EXPECT_TRUE(legal) << chosen;
      }
    }
  }
}

}  // namespace
}  // namespace medley::cuda
