#include "apps/bench_offline.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <CLI/CLI.hpp>

#include "adapter/peft_reader.h"
#include "apps/bench_probes.h"
#include "apps/bench_report.h"
#include "apps/cold_files.h"
#include "apps/engine_target.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/start_engine.h"
#include "weights/dummy_adapters.h"

namespace medley::apps {
namespace {

std::string adapter_name(int index) { return fmt::format("random-{}", index); }

constexpr int64_t kNever = int64_t{1} << 62;
constexpr int kTallyInputTokens = 32;
constexpr int kTallyOutputTokens = 32;

// Means over the layers of the steps that have as many rows as there are users.
class RoutingTally {
 public:
  RoutingTally() {
    observer_.on_routing = [this](int, int num_rows, const RoutingCounts& counts) {
      if (num_rows != num_rows_) return;
      ++means_.num_layers;
      means_.experts += counts.num_experts;
      means_.expert_adapters += counts.num_expert_adapters;
    };
  }
  RoutingObserver* observer() { return &observer_; }
  // No step may run when either is called.
  void start(int num_rows) {
    means_ = {};
    num_rows_ = num_rows;
    observer_.enabled = true;
  }
  RoutingMeans finish() {
    observer_.enabled = false;
    const auto count = static_cast<double>(std::max<int64_t>(1, means_.num_layers));
    means_.experts /= count;
    means_.expert_adapters /= count;
    return means_;
  }

 private:
  RoutingObserver observer_;
  RoutingMeans means_;
  int num_rows_ = 0;
};

// What every run needs.
struct Bench {
  const BenchOfflineFlags& flags;
  BenchRecords& records;
  RoutingTally& tally;
  Engine& engine;
};

Result<BenchRun> run_once(const WorkloadFlags& traffic, int concurrency, Workload& workload,
                          Bench& bench) {
  const int num_requests = num_requests_of(traffic, concurrency);
  BenchRun run = start_run("offline", traffic, concurrency, bench.flags.num_adapters);
  const uint64_t steps_before = bench.engine.stats().num_steps;
  BenchProgress progress(num_requests);
  const int64_t start_ns = now_ns();
  int num_done = 0;
  for (int i = 0; i < num_requests; ++i) {
    const int64_t due = due_ns(traffic, i, start_ns);
    while (now_ns() < due) num_done = bench.records.wait_beyond(num_done, due);
    while (i - num_done >= concurrency) num_done = bench.records.wait_beyond(num_done, kNever);
    progress.update(num_done, i - num_done);
    const int adapter = workload.next_adapter();
    MEDLEY_TRY(submit({.adapter = adapter < 0 ? std::string() : adapter_name(adapter),
                       .prompt = workload.next_prompt(),
                       .output_len = traffic.output_len},
                      adapter, bench.records, bench.engine));
  }
  while (num_done < num_requests) {
    num_done = bench.records.wait_beyond(num_done, kNever);
    progress.update(num_done, num_requests - num_done);
  }
  run.requests = bench.records.take();
  set_seconds(run, start_ns);
  run.num_steps = bench.engine.stats().num_steps - steps_before;
  return run;
}

// As many requests at once, on short prompts.
Result<RoutingMeans> count_routing(int concurrency, int64_t vocab_size, Bench& bench) {
  WorkloadFlags traffic = bench.flags;
  traffic.input_len = std::min(traffic.input_len, kTallyInputTokens);
  traffic.output_len = std::min(traffic.output_len, kTallyOutputTokens);
  traffic.num_requests = concurrency;
  traffic.request_rate = 0.0;
  Workload workload(traffic, bench.flags.num_adapters, vocab_size);
  bench.tally.start(concurrency);
  MEDLEY_TRY(run_once(traffic, concurrency, workload, bench));
  return bench.tally.finish();
}

void log_adapters(const LoadedModel& loaded) {
  if (loaded.adapters == nullptr) return;
  const std::vector<AdapterInfo> all = loaded.adapters->list();
  const AdapterMemory memory = loaded.backend->adapter_memory();
  log::info("{} of {} adapters are on the device: {} of {} bytes of its pool",
            std::ranges::count(all, AdapterState::kOnDevice, &AdapterInfo::state), all.size(),
            memory.used_bytes, memory.pool_bytes);
}

// What the flags leave open, and what the traffic needs.
BenchOfflineFlags completed(const BenchOfflineFlags& given) {
  BenchOfflineFlags flags = given;
  flags.max_num_seqs = std::max(flags.max_num_seqs, *std::ranges::max_element(flags.concurrency));
  flags.enable_lora = flags.num_adapters > 0 || !flags.cold_adapter.empty();
  // The last cold adapter may still hold its slot when the next one comes.
  const int num_cold = flags.cold_adapter.empty() ? 0 : 2;
  flags.max_loras = std::max(flags.max_loras, flags.num_adapters + num_cold);
  if (flags.max_model_len == 0) {
    flags.max_model_len = flags.input_len +
                          static_cast<int64_t>(flags.input_len * flags.range_ratio) +
                          flags.output_len;
  }
  return flags;
}

}  // namespace

void add_bench_offline_flags(CLI::App& app, BenchOfflineFlags& flags) {
  add_model_flags(app, flags);
  add_workload_flags(app, flags);
  add_probe_flags(app, flags);
  app.add_option("--num-adapters", flags.num_adapters, "random adapters; 0 = base model only")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str()
      ->group("Traffic");
  app.add_option("--adapter-rank", flags.adapter_rank, "of the random adapters")
      ->check(CLI::Range(1, 512))
      ->capture_default_str()
      ->group("Traffic");
}

Result<void> bench_offline(const BenchOfflineFlags& given) {
  const BenchOfflineFlags flags = completed(given);
  const int64_t start_ns = now_ns();
  MEDLEY_TRY_ASSIGN(const ModelFolder folder, read_model_folder(flags.model));
  MEDLEY_TRY_ASSIGN(
      const DummyAdapters adapters,
      DummyAdapters::make(folder.spec, {.rank = flags.adapter_rank, .seed = flags.workload_seed}));
  // A random adapter's path is its number, save that of one on disk.
  const auto read = [&](const std::string& path) -> Result<AdapterWeights> {
    if (path.starts_with('/')) return read_peft_adapter(path, folder.spec);
    AdapterWeights weights;
    weights.modules = adapters.modules(std::stoull(path));
    weights.max_rank = flags.adapter_rank;
    weights.hash = "random adapter " + path;
    return weights;
  };
  RoutingTally tally;
  MEDLEY_TRY_ASSIGN(
      LoadedModel loaded,
      load_model(flags, folder, {.adapter_reader = read, .routing_observer = tally.observer()}));
  std::vector<std::string> names;
  for (int i = 0; i < flags.num_adapters; ++i) {
    names.push_back(adapter_name(i));
    MEDLEY_TRY(loaded.adapters->load(names.back(), std::to_string(i)));
  }
  BenchRecords records;
  MEDLEY_TRY_ASSIGN(
      const std::unique_ptr<Engine> engine,
      start_engine({.max_num_seqs = flags.max_num_seqs,
                    .max_num_batched_tokens = flags.max_num_batched_tokens,
                    .max_model_len = loaded.max_model_len,
                    .max_loras = loaded.max_loras,
                    .enable_prefix_caching = false},
                   std::move(loaded.executor), loaded.adapters.get(),
                   [&](std::vector<TokenEvent>&& events) { receive(events, records); }));
  log::info("ready in {:.2f} s", static_cast<double>(now_ns() - start_ns) * 1e-9);

  Bench bench = {.flags = flags, .records = records, .tally = tally, .engine = *engine};
  Workload workload(flags, flags.num_adapters, folder.spec.vocab_size);
  // Brings every adapter to the device, and pages in what the first step of each kind touches.
  const WorkloadFlags warm_up = warm_up_of(flags, flags.num_adapters);
  Workload warm_up_workload(warm_up, flags.num_adapters, folder.spec.vocab_size);
  MEDLEY_TRY(
      run_once(warm_up, *std::ranges::max_element(flags.concurrency), warm_up_workload, bench));
  log_adapters(loaded);
  if (flags.num_new_lengths > 0 || !flags.cold_adapter.empty()) {
    ColdFiles files(folder.spec,
                    dummy_adapter_of(folder.spec, flags.adapter_rank, flags.workload_seed));
    int next_number = flags.num_adapters;
    const auto cold_path = [&](ColdTier tier) -> Result<std::string> {
      return tier == ColdTier::kDisk ? files.next() : std::to_string(next_number++);
    };
    EngineTarget target(*engine, loaded.adapters.get(), records, cold_path);
    return run_probes("offline", flags, names, workload, target);
  }
  std::vector<BenchRun> runs;
  for (const int concurrency : flags.concurrency) {
    MEDLEY_TRY_ASSIGN(BenchRun run, run_once(flags, concurrency, workload, bench));
    if (folder.spec.moe) {
      MEDLEY_TRY_ASSIGN(run.routing, count_routing(concurrency, folder.spec.vocab_size, bench));
    }
    print(run);
    runs.push_back(std::move(run));
  }
  return finish(runs, flags.json);
}

}  // namespace medley::apps
