#pragma once

#include "apps/bench_workload.h"
#include "apps/load_model.h"
#include "base/error.h"

namespace medley::apps {

struct BenchOfflineFlags : ModelFlags, WorkloadFlags {
  int num_adapters = 8;  // random ones; 0 = base model only
  int adapter_rank = 32;
};

void add_bench_offline_flags(CLI::App& app, BenchOfflineFlags& flags);

// Runs the traffic through an engine in this process: times are those of tokens at the engine's
// output queue. Prefix caching is off. Prints a summary of each run.
Result<void> bench_offline(const BenchOfflineFlags& flags);

}  // namespace medley::apps
