#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/split_lora_kernel.h"

// What one projection of the split path is asked to do, and how it is laid over the device. Pure
// host code; thread-safe.

namespace medley::cuda {

// Each can be switched alone, so that its worth can be measured.
struct SplitSwitches {
  SplitK split_k = SplitK::kFixedOrder;
  bool swizzle = true;    // grouped tile order, of kSplitGroup segments
  bool even_k = true;     // no tail predicates where the shape allows it
  bool fused_add = true;  // expand adds into the base's output; else a delta and a pass that adds
  bool tuned = true;      // the table of split_tuned.cc; else one configuration for all
  std::string to_string() const;
};

inline constexpr int kSplitGroup = 4;

struct SplitLoraProblem {
  int in_size = 0;
  int num_units = 0;       // of B: 16 output rows each
  int max_pairs = 0;       // the padded batch's
  int rank_multiple = 16;  // what every rank divides by, which the caller vouches for
  std::string to_string() const;
};

// A row of the table: what was fastest on the H200 for a shape and up to `max_pairs` pairs.
struct SplitTuning {
  int in_size = 0;
  int num_units = 0;
  int max_pairs = 0;
  int whole_warps = 0;  // shrink without Split-K
  int whole_rank_step = 0;
  int split_warps = 0;  // shrink with it
  int split_rank_step = 0;
  int num_splits = 0;
  int expand_warps = 0;
  int expand_repeats = 0;
  bool split_k = false;  // the switches that were the faster
  bool swizzle = false;
  bool fused_add = false;
};
// The row of the smallest max_pairs that holds the problem, of the problem's shape.
std::optional<SplitTuning> find_split_tuning(const SplitLoraProblem& problem);

// The fastest setting that keeps the order of sums, by the table; all on where it has no row.
SplitSwitches best_split_switches(const SplitLoraProblem& problem);

// All that the kernels accept for the problem, with the switches as given.
std::vector<SplitShrinkConfig> legal_split_shrinks(const SplitLoraProblem& problem,
                                                   const SplitSwitches& switches);
std::vector<SplitExpandConfig> legal_split_expands(const SplitLoraProblem& problem,
                                                   const SplitSwitches& switches);

// Keyed by shape and padded batch alone, as they decide the order of sums.
SplitShrinkConfig select_split_shrink(const SplitLoraProblem& problem,
                                      const SplitSwitches& switches);
SplitExpandConfig select_split_expand(const SplitLoraProblem& problem,
                                      const SplitSwitches& switches);

}  // namespace medley::cuda
