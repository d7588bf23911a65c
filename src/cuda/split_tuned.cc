#include "cuda/split_lora.h"

namespace medley::cuda {
namespace {

// `bench_moe_ablation sweep` on the H200, 8 adapters of rank 32 (bench/results). GPT-OSS 20B's
// gate_up, then its down.
constexpr SplitTuning kTunings[] = {
    {.in_size = 2880,
     .num_units = 360,
     .max_pairs = 256,
     .shrink_warps = 10,
     .shrink_splits = 3,
     .shrink_rank_step = 2,
     .shrink_group = 1,
     .expand_warps = 4,
     .expand_group = 1},
    {.in_size = 2880,
     .num_units = 180,
     .max_pairs = 256,
     .shrink_warps = 10,
     .shrink_splits = 3,
     .shrink_rank_step = 2,
     .shrink_group = 1,
     .expand_warps = 4,
     .expand_group = 1},
};

}  // namespace

std::optional<SplitTuning> find_split_tuning(const SplitLoraProblem& problem) {
  std::optional<SplitTuning> found;
  for (const SplitTuning& row : kTunings) {
    if (row.in_size != problem.in_size || row.num_units != problem.num_units) continue;
    if (row.max_pairs < problem.max_pairs) continue;
    if (!found || row.max_pairs < found->max_pairs) found = row;
  }
  return found;
}

}  // namespace medley::cuda
