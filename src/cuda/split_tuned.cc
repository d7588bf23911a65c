#include "cuda/split_lora.h"

namespace medley::cuda {
namespace {

// `bench_moe_ablation sweep` on the H200, 8 adapters of rank 32 (bench/results): GPT-OSS 20B's
// gate_up and down at batch 1, 8, 16, 32 and 64. Columns in the order of SplitTuning.
constexpr SplitTuning kTunings[] = {
    {2880, 360, 4, 15, 4, 15, 2, 6, 4, 1, true, false, true},
    {2880, 180, 4, 15, 4, 15, 2, 6, 4, 1, true, false, true},
    {2880, 360, 32, 15, 4, 15, 2, 2, 4, 2, false, false, true},
    {2880, 180, 32, 15, 2, 15, 2, 2, 4, 2, false, false, true},
    {2880, 360, 64, 15, 2, 9, 4, 2, 1, 3, false, false, true},
    {2880, 180, 64, 15, 4, 15, 2, 2, 4, 2, false, false, true},
    {2880, 360, 128, 10, 4, 5, 4, 2, 1, 2, false, false, true},
    {2880, 180, 128, 15, 2, 8, 2, 2, 4, 3, false, false, true},
    {2880, 360, 256, 10, 4, 5, 4, 2, 1, 3, false, false, false},
    {2880, 180, 256, 10, 2, 5, 2, 2, 2, 2, false, false, false},
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
