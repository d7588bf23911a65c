#include "cuda/split_lora.h"

#include <fmt/format.h>

namespace medley::cuda {
namespace {

constexpr int kWarpsOfShrink[] = {4, 5, 6, 8, 9, 10, 15};
constexpr int kSplits[] = {1, 2, 3, 4, 5, 6, 8};
constexpr int kRankSteps[] = {1, 2, 4};
constexpr int kExpandWarps[] = {1, 2, 4, 8};
constexpr int kRepeats[] = {1, 2, 3, 6};

// The configuration of no tuning.
constexpr SplitTuning kUntuned = {.whole_warps = 8,
                                  .whole_rank_step = 2,
                                  .split_warps = 8,
                                  .split_rank_step = 2,
                                  .num_splits = 4,
                                  .expand_warps = 4,
                                  .expand_repeats = 1,
                                  .split_k = true,
                                  .swizzle = true,
                                  .fused_add = true};

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
                              SplitShrinkConfig tile) {
  tile.group = switches.swizzle ? kSplitGroup : 1;
  tile.split_k = switches.split_k;
  tile.even_k = switches.even_k && problem.in_size % 32 == 0 &&
                num_column_blocks(problem) % (tile.num_warps * tile.num_splits) == 0;
  return tile;
}

SplitExpandConfig make_expand(const SplitLoraProblem& problem, const SplitSwitches& switches,
                              SplitExpandConfig tile) {
  tile.group = switches.swizzle ? kSplitGroup : 1;
  tile.even_k = switches.even_k && problem.rank_multiple % kExpandRanks == 0;
  tile.fused_add = switches.fused_add;
  return tile;
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
  return fmt::format("split_expand(warps={} x {}, group={}, even_k={}, fused_add={})", num_warps,
                     repeats, group, even_k, fused_add);
}

std::vector<SplitShrinkConfig> legal_split_shrinks(const SplitLoraProblem& problem,
                                                   const SplitSwitches& switches) {
  std::vector<SplitShrinkConfig> configs;
  for (const int warps : kWarpsOfShrink) {
    for (const int splits : kSplits) {
      if ((switches.split_k == SplitK::kOff) != (splits == 1)) continue;
      if (warps > kWarpsOfShrink[0] && warps * splits > num_column_blocks(problem)) continue;
      for (const int rank_step : kRankSteps) {
        configs.push_back(make_shrink(
            problem, switches, {.num_warps = warps, .num_splits = splits, .rank_step = rank_step}));
      }
    }
  }
  return configs;
}

std::vector<SplitExpandConfig> legal_split_expands(const SplitLoraProblem& problem,
                                                   const SplitSwitches& switches) {
  std::vector<SplitExpandConfig> configs;
  for (const int warps : kExpandWarps) {
    for (const int repeats : kRepeats) {
      configs.push_back(make_expand(problem, switches, {.num_warps = warps, .repeats = repeats}));
    }
  }
  return configs;
}

SplitSwitches best_split_switches(const SplitLoraProblem& problem) {
  const SplitTuning tuning = find_split_tuning(problem).value_or(kUntuned);
  return {.split_k = tuning.split_k ? SplitK::kFixedOrder : SplitK::kOff,
          .swizzle = tuning.swizzle,
          .fused_add = tuning.fused_add};
}

SplitShrinkConfig select_split_shrink(const SplitLoraProblem& problem,
                                      const SplitSwitches& switches) {
  const SplitTuning tuning = tuning_of(problem, switches);
  if (switches.split_k == SplitK::kOff) {
    return make_shrink(problem, switches,
                       {.num_warps = tuning.whole_warps, .rank_step = tuning.whole_rank_step});
  }
  return make_shrink(problem, switches,
                     {.num_warps = tuning.split_warps,
                      .num_splits = tuning.num_splits,
                      .rank_step = tuning.split_rank_step});
}

SplitExpandConfig select_split_expand(const SplitLoraProblem& problem,
                                      const SplitSwitches& switches) {
  const SplitTuning tuning = tuning_of(problem, switches);
  return make_expand(problem, switches,
                     {.num_warps = tuning.expand_warps, .repeats = tuning.expand_repeats});
}

}  // namespace medley::cuda
