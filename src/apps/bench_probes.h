#pragma once

#include <string>
#include <vector>

#include "apps/bench_target.h"
#include "apps/bench_workload.h"
#include "base/error.h"

namespace medley::apps {

// --cold-adapter, at every --concurrency, or --new-lengths with the first adapter: prints the
// results and writes them to --json. `adapters`: of the users; none: the base model.
Result<void> run_probes(const char* mode, const WorkloadFlags& flags,
                        const std::vector<std::string>& adapters, Workload& workload,
                        BenchTarget& target);

}  // namespace medley::apps
