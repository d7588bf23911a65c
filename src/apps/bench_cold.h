#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/bench_report.h"
#include "apps/bench_target.h"
#include "apps/bench_workload.h"

namespace medley::apps {

// One cold request beside users that decode, and one for the same adapter when it is warm. Times in
// ms. `others`: between tokens of the users.
struct ColdSample {
  double cold_ttft = 0;
  double warm_ttft = 0;
  std::optional<double> load;        // from sending the cold request until its adapter was usable
  std::vector<double> others_quiet;  // nothing else ran
  std::vector<double> others_load;   // while the adapter was loaded
  std::vector<double> others_cold;   // from sending the cold request to its first token
  std::vector<double> others_warm;   // the same of the warm one
  std::vector<double> steps_cold;    // of one of them, from sending to the first token, in order
};

struct ColdRun {
  std::string mode;  // "offline", "serve"
  std::string tier;  // "host", "disk"
  int concurrency = 0;
  int input_len = 0;
  std::vector<ColdSample> samples;
};

struct ColdSummary {
  Percentiles cold_ttft, warm_ttft, load;
  Percentiles others_quiet, others_load, others_cold, others_warm;
  double added_ms = 0;    // median of the cold less median of the warm
  double p99_change = 0;  // others while loading against quiet: 0.05 is 5 % more
};

// Times between the tokens of a request, of those that came in (from, to].
std::vector<double> token_gaps_ms(const RequestRecord& record, int64_t from_ns, int64_t to_ns);

// `concurrency` - 1 users decode, with the adapters named (in turns; none: the base model), then
// one request comes for the cold adapter; --repeats times, each with new prompts.
Result<ColdRun> run_cold(const WorkloadFlags& flags, int concurrency,
                         const std::vector<std::string>& adapters, Workload& workload,
                         BenchTarget& target);

ColdSummary summarise(const ColdRun& run);
void print(const ColdRun& run);
std::string to_json(const std::vector<ColdRun>& runs);

}  // namespace medley::apps
