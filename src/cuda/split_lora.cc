#include "cuda/split_lora.h"

#include <fmt/format.h>

namespace medley::cuda {
namespace {

constexpr int kShrinkWarps[] = {4, 5, 6, 8, 9, 10, 15};
constexpr int kSplits[] = {1, 2, 3, 4, 5, 6, 8};
constexpr int kRankSteps[] = {1, 2, 4};
constexpr int kExpandWarps[] = {1, 2, 4, 8};
constexpr int kGroups[] = {1, 2, 4, 8, 16};

// The configuration of no tuning.
constexpr SplitTuning kUntuned = {.shrink_warps = 8,
                                  .shrink_splits = 4,
                                  .shrink_rank_step = 2,
                                  .shrink_group = 8,
                                  .expand_warps = 4,
                                  .expand_group = 8};

const char* name(SplitK split_k) {
  switch (split_k) {
    case SplitK::kOff:
      return "off";
    case SplitK::kAtomic:
      return "atomic";
    case SplitK::kFixedOrder:
      return "fixed-order";
  }
  return "";
}

int num_column_blocks(const SplitLoraProblem& problem) { return (problem.in_size + 31) / 32; }

SplitShrinkConfig make_shrink(const SplitLoraProblem& problem, const SplitSwitches& switches,
                              const SplitTuning& tuning) {
  SplitShrinkConfig config = {.num_warps = tuning.shrink_warps,
                              .num_splits = tuning.shrink_splits,
                              .rank_step = tuning.shrink_rank_step,
                              .group = switches.swizzle ? tuning.shrink_group : 1,
                              .split_k = switches.split_k};
  if (switches.split_k == SplitK::kOff) config.num_splits = 1;
  config.even_k = switches.even_k && problem.in_size % 32 == 0 &&
                  num_column_blocks(problem) % (config.num_warps * config.num_splits) == 0;
  return config;
}

SplitExpandConfig make_expand(const SplitLoraProblem& problem, const SplitSwitches& switches,
                              const SplitTuning& tuning) {
  return {.num_warps = tuning.expand_warps,
          .group = switches.swizzle ? tuning.expand_group : 1,
          .even_k = switches.even_k && problem.rank_multiple % kExpandRanks == 0,
          .fused_add = switches.fused_add};
}

SplitTuning tuning_of(const SplitLoraProblem& problem, const SplitSwitches& switches) {
  return (switches.tuned ? find_split_tuning(problem) : std::nullopt).value_or(kUntuned);
}

}  // namespace

std::string SplitSwitches::to_string() const {
  return fmt::format("split_k={}, swizzle={}, even_k={}, fused_add={}, tuned={}", name(split_k),
                     swizzle, even_k, fused_add, tuned);
}

std::string SplitLoraProblem::to_string() const {
  return fmt::format("split_lora(in={}, units={}, pairs<={}, ranks multiple of {})", in_size,
                     num_units, max_pairs, rank_multiple);
}

std::string SplitShrinkConfig::to_string() const {
  return fmt::format("split_shrink(warps={}, splits={} {}, rank_step={}, group={}, even_k={})",
                     num_warps, num_splits, name(split_k), rank_step, group, even_k);
}

std::string SplitExpandConfig::to_string() const {
  return fmt::format("split_expand(warps={}, group={}, even_k={}, fused_add={})", num_warps, group,
                     even_k, fused_add);
}

std::vector<SplitShrinkConfig> legal_split_shrinks(const SplitLoraProblem& problem,
                                                   const SplitSwitches& switches) {
  std::vector<SplitShrinkConfig> configs;
  for (const int warps : kShrinkWarps) {
    for (const int splits : kSplits) {
      if (switches.split_k == SplitK::kOff && splits > 1) continue;
      if (warps * splits > num_column_blocks(problem) && warps * splits > kShrinkWarps[0]) continue;
      for (const int rank_step : kRankSteps) {
        for (const int group : kGroups) {
          if (!switches.swizzle && group > 1) continue;
          configs.push_back(make_shrink(problem, switches,
                                        {.shrink_warps = warps,
                                         .shrink_splits = splits,
                                         .shrink_rank_step = rank_step,
                                         .shrink_group = group}));
        }
      }
    }
  }
  return configs;
}

std::vector<SplitExpandConfig> legal_split_expands(const SplitLoraProblem& problem,
                                                   const SplitSwitches& switches) {
  std::vector<SplitExpandConfig> configs;
  for (const int warps : kExpandWarps) {
    for (const int group : kGroups) {
      if (!switches.swizzle && group > 1) continue;
      configs.push_back(
          make_expand(problem, switches, {.expand_warps = warps, .expand_group = group}));
    }
  }
  return configs;
}

SplitShrinkConfig select_split_shrink(const SplitLoraProblem& problem,
                                      const SplitSwitches& switches) {
  return make_shrink(problem, switches, tuning_of(problem, switches));
}

SplitExpandConfig select_split_expand(const SplitLoraProblem& problem,
                                      const SplitSwitches& switches) {
  return make_expand(problem, switches, tuning_of(problem, switches));
}

}  // namespace medley::cuda
