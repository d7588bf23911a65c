// Where the time of one step goes: the kernels of decode steps and of a prefill step on the whole
// engine's executor, from CUPTI, and what the host asks of CUDA meanwhile.
//
// Usage: bench_step CONFIG [CONTEXT [CONCURRENCY ...]]      (default 1600, 1 8 64)
// Dummy weights; each concurrency without and with 8 adapters of rank 32, taken in turn.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "bench/api_calls.h"
#include "bench/dummy_run.h"
#include "bench/step_table.h"
#include "engine/testing/step_driver.h"

namespace medley::bench {
namespace {

using testing::StepDriver;

constexpr int kNumAdapters = 8;
constexpr int kRank = 32;
constexpr int kMaxRows = 2048;
constexpr int kPageSize = 16;
constexpr size_t kPoolBytes = size_t{32} << 30;
constexpr int kWarmUpSteps = 8;
constexpr int kTimedSteps = 60;
constexpr int kTracedSteps = 20;

class StepBench {
 public:
  StepBench(DummyRun run, int context)
      : run_(std::move(run)), context_(context), driver_(*run_.executor, max_len(context)) {}

  static int max_len(int context) { return context + kWarmUpSteps + kTimedSteps + kTracedSteps; }

  Result<void> bring_adapters() {
    for (int i = 0; i < kNumAdapters; ++i) {
      const std::string name = fmt::format("random-{}", i);
      MEDLEY_TRY(run_.adapters->load(name, std::to_string(i)));
      MEDLEY_TRY_ASSIGN(AdapterPin pin, bring_to_device(name, run_));
      pins_.push_back(std::move(pin));
    }
    return {};
  }

  // Fills the keys and values of all sequences; the first one's step is shown.
  void prefill() {
    restart_first(kNoAdapter);
    for (int seq = 1; seq < run_.executor->desc().step.max_seqs; ++seq) {
      driver_.restart(seq, kNoAdapter);
      driver_.run({{prompt(seq)}});
    }
    for (const bool adapters : {true, false}) {
      fmt::print("prefill of {} tokens, {}\n", context_, adapters ? "one adapter" : "base");
      const int32_t slot = adapters ? pins_[0].slot() : kNoAdapter;
      restart_first(slot);  // warm
      const int64_t start_ns = now_ns();
      restart_first(slot);
      const double step_us = static_cast<double>(now_ns() - start_ns) * 1e-3;
      KernelTrace trace;
      restart_first(slot);
      print(make_step_table(trace.stop(), 1), step_us);
    }
  }

  void decode(int batch, bool adapters) {
    fmt::print("decode, {} x {} tokens, {}\n", batch, context_,
               adapters ? fmt::format("{} adapters", kNumAdapters) : "base");
    pieces_.clear();
    for (int seq = 0; seq < batch; ++seq) {
      driver_.rewind(seq, context_);
      driver_.set_adapter(seq, adapters ? pins_[seq % kNumAdapters].slot() : kNoAdapter);
      pieces_.push_back({.seq = seq});
    }
    run_steps(kWarmUpSteps);
    const int64_t start_ns = now_ns();
    run_steps(kTimedSteps);
    const double step_us = static_cast<double>(now_ns() - start_ns) * 1e-3 / kTimedSteps;
    for (int seq = 0; seq < batch; ++seq) driver_.rewind(seq, context_ + kWarmUpSteps);
    print_calls();
    KernelTrace trace;
    run_steps(kTracedSteps);
    print(make_step_table(trace.stop(), kTracedSteps), step_us);
  }

 private:
  StepDriver::Piece prompt(int seq) const {
    StepDriver::Piece piece = {.seq = seq};
    const int64_t vocab_size = run_.executor->desc().vocab_size;
    for (int64_t i = 0; i < context_; ++i) {
      piece.tokens.push_back(
          static_cast<int32_t>((i * 7919 + int64_t{seq} * 104729 + 17) % vocab_size));
    }
    return piece;
  }

  void restart_first(int32_t adapter) {
    driver_.restart(0, adapter);
    driver_.run({{prompt(0)}});
  }

  // One step ahead of the host, as the engine runs them.
  void run_steps(int count) {
    StepTicket waited_for = driver_.launch(pieces_);
    for (int i = 1; i < count; ++i) {
      const StepTicket next = driver_.launch(pieces_);
      driver_.wait(waited_for);
      waited_for = next;
    }
    driver_.wait(waited_for);
  }

  void print_calls() {
    const ApiCalls calls;
    run_steps(kTracedSteps);
    fmt::print("  calls of a step:");
    for (const auto& [name, count] : calls.all().by_name) {
      fmt::print(" {:.2g} {}", static_cast<double>(count) / kTracedSteps, name);
    }
    fmt::print("\n");
    for (const auto& piece : pieces_) driver_.rewind(piece.seq, context_ + kWarmUpSteps);
  }

  DummyRun run_;
  std::vector<AdapterPin> pins_;
  const int context_;
  StepDriver driver_;
  std::vector<StepDriver::Piece> pieces_;
};

Result<void> run(const std::string& config, int context, const std::vector<int>& concurrency) {
  const auto [least, most] = std::ranges::minmax(concurrency);
  if (context < 1 || context > kMaxRows || least < 1) {
    return invalid_argument(
        fmt::format("bench_step: a context of 1 to {} tokens and concurrency from 1 on, found {} "
                    "and {}",
                    kMaxRows, context, least));
  }
  const int num_pages = most * ((StepBench::max_len(context) + kPageSize - 1) / kPageSize);
  MEDLEY_TRY_ASSIGN(
      DummyRun made,
      make_dummy_run({.config = config,
                      .step = {.max_rows = kMaxRows, .max_seqs = most, .max_pages = num_pages},
                      .num_pages = num_pages,
                      .max_loras = kNumAdapters,
                      .adapter_rank = kRank,
                      .pool_bytes = kPoolBytes}));
  StepBench bench(std::move(made), context);
  MEDLEY_TRY(bench.bring_adapters());
  bench.prefill();
  for (const int batch : concurrency) {
    for (const bool with_adapters : {false, true}) bench.decode(batch, with_adapters);
  }
  return {};
}

}  // namespace
}  // namespace medley::bench

int main(int argc, char** argv) {
  medley::init_logging();
  if (argc < 2) {
    fmt::print(stderr, "usage: bench_step CONFIG [CONTEXT [CONCURRENCY ...]]\n");
    return 2;
  }
  const int context = argc > 2 ? std::atoi(argv[2]) : 1600;
  std::vector<int> concurrency;
  for (int i = 3; i < argc; ++i) concurrency.push_back(std::atoi(argv[i]));
  if (concurrency.empty()) concurrency = {1, 8, 64};
  const medley::Result<void> result = medley::bench::run(argv[1], context, concurrency);
  if (result.ok()) return 0;
  fmt::print(stderr, "bench_step: {}\n", result.error().message);
  return 1;
}
