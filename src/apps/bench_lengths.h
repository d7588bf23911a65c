#pragma once

#include <string>
#include <vector>

#include "apps/bench_target.h"
#include "apps/bench_workload.h"

namespace medley::apps {

// Requests of one prompt length, one after the other: ms to the first token.
struct LengthSample {
  int num_tokens = 0;
  double first = 0;                // no prompt of this length came before
  std::vector<double> later = {};  // prompts of the same length
};

// `count` different lengths in [1 - r, 1 + r] x input_len, spread evenly, in random order;
// input_len itself, which the warm-up has, is not among them. kInvalidArgument when the range holds
// fewer.
Result<std::vector<int>> new_lengths(const WorkloadFlags& flags, int count);

// Each length for the first time, then again, with other prompts; one request at a time. `adapter`
// empty: the base model.
Result<std::vector<LengthSample>> run_lengths(const WorkloadFlags& flags,
                                              const std::string& adapter, Workload& workload,
                                              BenchTarget& target);

struct LengthSummary {
  double first_p50 = 0, later_p50 = 0;  // ms
  // Of the first time over the later ones' median, per length.
  double ratio_p50 = 0, ratio_p90 = 0, ratio_max = 0;
};
LengthSummary summarise(const std::vector<LengthSample>& samples);
void print(const std::vector<LengthSample>& samples);
std::string to_json(const std::vector<LengthSample>& samples);

}  // namespace medley::apps
