#include "apps/bench_probes.h"

#include "apps/bench_cold.h"
#include "apps/bench_lengths.h"
#include "apps/bench_report.h"

namespace medley::apps {

Result<void> run_probes(const char* mode, const WorkloadFlags& flags,
                        const std::vector<std::string>& adapters, Workload& workload,
                        BenchTarget& target) {
  if (flags.num_new_lengths > 0) {
    MEDLEY_TRY_ASSIGN(
        const std::vector<LengthSample> samples,
        run_lengths(flags, adapters.empty() ? "" : adapters.front(), workload, target));
    print(samples);
    return write_json(flags.json, to_json(samples));
  }
  std::vector<ColdRun> runs;
  for (const int concurrency : flags.concurrency) {
    MEDLEY_TRY_ASSIGN(ColdRun run, run_cold(flags, concurrency, adapters, workload, target));
    run.mode = mode;
    print(run);
    runs.push_back(std::move(run));
  }
  return write_json(flags.json, to_json(runs));
}

}  // namespace medley::apps
