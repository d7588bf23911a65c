#pragma once

#include <string>
#include <vector>

#include "apps/bench_workload.h"
#include "base/error.h"

namespace medley::apps {

struct BenchServeFlags : WorkloadFlags {
  std::string base_url = "http://127.0.0.1:8000";
  std::string model;                  // empty = the first of /v1/models
  std::vector<std::string> adapters;  // names; empty = base model only
  int64_t vocab_size = 32000;
  std::string cold_folder;
};

void add_bench_serve_flags(CLI::App& app, BenchServeFlags& flags);

// Sends the traffic to a server of the OpenAI API and times what its clients see: prompts of token
// ids to /v1/completions, streamed, one connection per request at a time. Prints a summary of each
// run.
Result<void> bench_serve(const BenchServeFlags& flags);

}  // namespace medley::apps
