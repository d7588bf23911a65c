#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace medley::apps {

// The traffic of a benchmark: requests with answers of one length, greedy, end tokens ignored.
struct WorkloadFlags {
  int input_len = 1600;
  double range_ratio = 0.0;  // prompts have (1 - r) to (1 + r) times input_len tokens
  int output_len = 600;
  std::vector<int> concurrency = {8};  // one run each
  int num_requests = 0;                // of a run; 0 = as many as run at once
  double request_rate = 0.0;           // per second, at equal distances; 0 = as soon as one ends
  std::string adapter_mix = "round-robin";
  double zipf_exponent = 1.0;
  uint64_t workload_seed = 1;
  std::string cold_adapter;  // "host", "disk": measure cold adapters instead; empty: off
  int num_repeats = 10;      // of the cold request
  int num_new_lengths = 0;   // measure so many new prompt lengths instead; 0: off
  int num_warm_up = 0;       // requests before the first run; 0 = every adapter once
  std::string json;          // file for the results; empty = none
};

void add_workload_flags(CLI::App& app, WorkloadFlags& flags);
void add_probe_flags(CLI::App& app, WorkloadFlags& flags);

// Requests of a run at `concurrency`.
int num_requests_of(const WorkloadFlags& flags, int concurrency);
// When the i-th request of a run is to be sent, by now_ns().
int64_t due_ns(const WorkloadFlags& flags, int i, int64_t start_ns);
// A short run before the others: every adapter once, a few tokens each.
WorkloadFlags warm_up_of(const WorkloadFlags& flags, int num_adapters);

// Which adapter each request has, and its prompt. Not thread-safe.
class Workload {
 public:
  // `num_adapters` 0: all requests are for the base model.
  Workload(const WorkloadFlags& flags, int num_adapters, int64_t vocab_size);

  // The next request's adapter, or -1 for the base model.
  int next_adapter();
  // Random tokens; no two prompts begin alike.
  std::vector<int32_t> next_prompt();
  std::vector<int32_t> prompt(int num_tokens);

 private:
  const WorkloadFlags flags_;
  int num_adapters_;
  int64_t num_taken_ = 0;
  std::mt19937_64 engine_;
  std::uniform_int_distribution<int32_t> token_;
  std::discrete_distribution<int> adapter_;
};

}  // namespace medley::apps
