#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench_records.h"
#include "apps/bench_workload.h"
#include "base/error.h"

namespace medley::apps {

// Of a sorted sample: p in [0, 1], linear between neighbours. 0 for an empty one.
double percentile(const std::vector<double>& sorted, double p);

struct Percentiles {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;  // ms
};
Percentiles percentiles_of(std::vector<double> values_ms);

// Of the MoE layers of decode steps: distinct experts, and distinct pairs of an expert and an
// adapter. Counted apart from the times, on short prompts.
struct RoutingMeans {
  int64_t num_layers = 0;  // counted; 0: not known
  double experts = 0;
  double expert_adapters = 0;
};

struct BenchRun {
  std::string mode;  // "offline", "serve"
  int concurrency = 0;
  double request_rate = 0;
  int input_len = 0;
  int output_len = 0;
  std::string adapter_mix;
  int num_adapters = 0;
  std::vector<RequestRecord> requests;
  double seconds = 0;  // from the first request sent to the last token
  // offline only
  uint64_t num_steps = 0;
  RoutingMeans routing;
};

struct BenchSummary {
  int num_completed = 0;
  int num_failed = 0;
  int64_t num_output_tokens = 0;
  double output_tokens_per_s = 0;  // of all users together, prefill included
  double input_tokens_per_s = 0;
  double user_tokens_per_s = 0;  // 1 / median inter-token latency
  Percentiles ttft_ms;           // first token - sent
  Percentiles itl_ms;            // between two tokens of a request
  Percentiles e2e_ms;
};

BenchRun start_run(const char* mode, const WorkloadFlags& flags, int concurrency, int num_adapters);
// Once the requests are there: the time from `start_ns` to the last token.
void set_seconds(BenchRun& run, int64_t start_ns);
BenchSummary summarise(const BenchRun& run);
void print(const BenchRun& run);
// Writes `text` to `path` (empty: nowhere).
Result<void> write_json(const std::string& path, const std::string& text);
// Writes the results to `json`. An error when some request was not answered.
Result<void> finish(const std::vector<BenchRun>& runs, const std::string& json);

// One line that is rewritten while requests end: on a terminal only.
class BenchProgress {
 public:
  explicit BenchProgress(int total);
  ~BenchProgress();
  void update(int done, int running);

 private:
  int total_;
  bool is_terminal_;
  int64_t last_ns_ = 0;
};

}  // namespace medley::apps
