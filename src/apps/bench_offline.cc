#include "apps/bench_offline.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include <CLI/CLI.hpp>

#include "apps/bench_report.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/start_engine.h"
#include "weights/dummy_adapters.h"

namespace medley::apps {
namespace {

std::string adapter_name(int index) { return fmt::format("random-{}", index); }

// The records of a run's requests, filled by the engine's thread.
class Recorder {
 public:
  void start(int num_requests) {
    const std::lock_guard lock(mutex_);
    records_.assign(num_requests, {});
    num_done_ = 0;
  }
  void sent(const Request& request, int adapter) {
    const std::lock_guard lock(mutex_);
    records_[request.id - first_id_] = {
        .adapter = adapter,
        .num_prompt_tokens = static_cast<int>(request.prompt.size()),
        .sent_ns = request.arrival_ns};
  }
  void receive(const std::vector<TokenEvent>& events) {
    const std::lock_guard lock(mutex_);
    for (const TokenEvent& event : events) {
      RequestRecord& record = records_[event.request_id - first_id_];
      if (event.token_id) {
        record.token_ns.push_back(event.time_ns);
        ++record.num_tokens;
      }
      if (event.error) record.error = event.error->message;
      if (event.finish) ++num_done_;
    }
    changed_.notify_all();
  }
  // Waits until more than `num` requests have ended, or until `deadline_ns`; returns how many have.
  int wait_beyond(int num, int64_t deadline_ns) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(0, deadline_ns - now_ns())),
                      [&] { return num_done_ > num; });
    return num_done_;
  }
  std::vector<RequestRecord> take() {
    const std::lock_guard lock(mutex_);
    first_id_ += records_.size();
    return std::move(records_);
  }
  RequestId first_id() const { return first_id_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RequestRecord> records_;
  RequestId first_id_ = 1;
  int num_done_ = 0;
};

constexpr int64_t kNever = int64_t{1} << 62;

Result<BenchRun> run_once(const BenchOfflineFlags& flags, int concurrency, Workload& workload,
                          Recorder& recorder, Engine& engine) {
  const int num_requests = num_requests_of(flags, concurrency);
  BenchRun run = start_run("offline", flags, concurrency, flags.num_adapters);
  recorder.start(num_requests);
  const uint64_t steps_before = engine.stats().num_steps;
  BenchProgress progress(num_requests);
  const int64_t start_ns = now_ns();
  int num_done = 0;
  for (int i = 0; i < num_requests; ++i) {
    const int64_t due = due_ns(flags, i, start_ns);
    while (now_ns() < due) num_done = recorder.wait_beyond(num_done, due);
    while (i - num_done >= concurrency) num_done = recorder.wait_beyond(num_done, kNever);
    progress.update(num_done, i - num_done);
    const int adapter = workload.next_adapter();
    Request request = {
        .id = recorder.first_id() + i,
        .prompt = workload.next_prompt(),
        .adapter = adapter < 0 ? std::string() : adapter_name(adapter),
        .sampling = {.temperature = 0.0f, .max_tokens = flags.output_len, .ignore_eos = true}};
    request.arrival_ns = now_ns();
    recorder.sent(request, adapter);
    MEDLEY_TRY(engine.submit(std::move(request)));
  }
  while (num_done < num_requests) {
    num_done = recorder.wait_beyond(num_done, kNever);
    progress.update(num_done, num_requests - num_done);
  }
  run.requests = recorder.take();
  set_seconds(run, start_ns);
  run.num_steps = engine.stats().num_steps - steps_before;
  return run;
}

}  // namespace

void add_bench_offline_flags(CLI::App& app, BenchOfflineFlags& flags) {
  add_model_flags(app, flags);
  add_workload_flags(app, flags);
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
  BenchOfflineFlags flags = given;
  const int most = *std::ranges::max_element(flags.concurrency);
  flags.max_num_seqs = std::max(flags.max_num_seqs, most);
  flags.enable_lora = flags.num_adapters > 0;
  flags.max_loras = std::max(flags.max_loras, flags.num_adapters);
  if (flags.max_model_len == 0) {
    flags.max_model_len = flags.input_len +
                          static_cast<int64_t>(flags.input_len * flags.range_ratio) +
                          flags.output_len;
  }

  const int64_t start_ns = now_ns();
  MEDLEY_TRY_ASSIGN(const ModelFolder folder, read_model_folder(flags.model));
  MEDLEY_TRY_ASSIGN(
      const DummyAdapters adapters,
      DummyAdapters::make(folder.spec, {.rank = flags.adapter_rank, .seed = flags.workload_seed}));
  // A random adapter's path is its number.
  const auto read = [&](const std::string& path) -> Result<AdapterWeights> {
    AdapterWeights weights;
    weights.modules = adapters.modules(std::stoull(path));
    weights.max_rank = flags.adapter_rank;
    weights.hash = "random adapter " + path;
    return weights;
  };
  MEDLEY_TRY_ASSIGN(LoadedModel loaded, load_model(flags, folder, read));
  for (int i = 0; i < flags.num_adapters; ++i) {
    MEDLEY_TRY(loaded.adapters->load(adapter_name(i), std::to_string(i)));
  }
  Recorder recorder;
  MEDLEY_TRY_ASSIGN(
      const std::unique_ptr<Engine> engine,
      start_engine({.max_num_seqs = flags.max_num_seqs,
                    .max_num_batched_tokens = flags.max_num_batched_tokens,
                    .max_model_len = loaded.max_model_len,
                    .max_loras = loaded.max_loras,
                    .enable_prefix_caching = false},
                   std::move(loaded.executor), loaded.adapters.get(),
                   [&](std::vector<TokenEvent>&& events) { recorder.receive(events); }));
  log::info("ready in {:.2f} s", static_cast<double>(now_ns() - start_ns) * 1e-9);

  Workload workload(flags, flags.num_adapters, folder.spec.vocab_size);
  // Brings every adapter to the device, and pages in what the first step of each kind touches.
  BenchOfflineFlags warm_up = flags;
  static_cast<WorkloadFlags&>(warm_up) = warm_up_of(flags, flags.num_adapters);
  MEDLEY_TRY(run_once(warm_up, most, workload, recorder, *engine));
  std::vector<BenchRun> runs;
  for (const int concurrency : flags.concurrency) {
    MEDLEY_TRY_ASSIGN(BenchRun run, run_once(flags, concurrency, workload, recorder, *engine));
    print(run);
    runs.push_back(std::move(run));
  }
  return finish(runs, flags.json);
}

}  // namespace medley::apps
