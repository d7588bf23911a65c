// What steps ask of CUDA, counted by CUPTI: launches, waits, allocations, module loads.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "bench/api_calls.h"
#include "bench/dummy_run.h"
#include "cuda/check.h"
#include "engine/start_engine.h"
#include "engine/testing/step_driver.h"

namespace medley::testing {
namespace {

using bench::ApiCalls;
using bench::DummyRun;

constexpr int kMaxSeqs = 8;
constexpr int kMaxLen = 128;
constexpr int kPageSize = 16;
constexpr int kNumPages = kMaxSeqs * kMaxLen / kPageSize;

// A mixture of experts with sliding windows (two plans of attention a step), and dense layers.
const char* const kModels[] = {"gptoss-mxfp4", "qwen3-untied"};

DummyRun make_run(const std::string& model, int max_loras) {
  const char* root = std::getenv("MEDLEY_SOURCE_DIR");
  return bench::make_dummy_run(
             {.config = std::string(root != nullptr ? root : ".") + "/tests/golden/" + model +
                        "/config.json",
              .step = {.max_rows = 64, .max_seqs = kMaxSeqs, .max_pages = kNumPages},
              .num_pages = kNumPages,
              .max_loras = max_loras,
              .adapter_rank = 8,
              .pool_bytes = size_t{16} << 20,
              .pinned_bytes = size_t{32} << 20})
      .value();
}

// The counts can fail: a call of each kind is seen, and seen once.
TEST(ApiCalls, SeesWhatItCounts) {
  MEDLEY_CUDA_CHECK(cudaFree(nullptr));
  ApiCalls calls;
  void* device = nullptr;
  void* host = nullptr;
  MEDLEY_CUDA_CHECK(cudaMalloc(&device, 1024));
  MEDLEY_CUDA_CHECK(cudaMallocHost(&host, 1024));
  EXPECT_EQ(calls.all().num_allocations(), 2);
  EXPECT_EQ(calls.all().num_synchronisations(), 0);
  MEDLEY_CUDA_CHECK(cudaMemcpy(device, host, 1024, cudaMemcpyHostToDevice));
  MEDLEY_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_EQ(calls.all().num_synchronisations(), 2);
  MEDLEY_CUDA_CHECK(cudaFreeHost(host));
  MEDLEY_CUDA_CHECK(cudaFree(device));
  EXPECT_EQ(calls.all().num_allocations(), 4);
  EXPECT_EQ(calls.by_thread().size(), 1u);
  calls.reset();
  EXPECT_EQ(calls.all().num_allocations(), 0);
}

class StepCalls : public ::testing::TestWithParam<const char*> {};

// A decode step costs the host a copy of its inputs, a graph, and a copy of its results.
TEST_P(StepCalls, ADecodeStepIsOneGraphBetweenCopies) {
  constexpr int kSteps = 50;
  DummyRun run = make_run(GetParam(), /*max_loras=*/2);
  ASSERT_TRUE(run.adapters->load("a", "1").ok());
  const AdapterPin pin = bench::bring_to_device("a", run).value();
  StepDriver driver(*run.executor, kMaxLen);
  for (const int32_t adapter : {kNoAdapter, pin.slot()}) {
    std::vector<StepDriver::Piece> pieces;
    for (int seq = 0; seq < kMaxSeqs; ++seq) {
      driver.restart(seq, seq % 2 == 0 ? adapter : kNoAdapter);
      pieces.push_back({.seq = seq, .tokens = {1, 2, 3, seq}});
    }
    driver.run(pieces);
    for (StepDriver::Piece& piece : pieces) piece.tokens.clear();
    driver.run(pieces);
    ApiCalls calls;
    for (int i = 0; i < kSteps; ++i) driver.run(pieces);
    const ApiCalls::Counts counts = calls.all();
    EXPECT_EQ(counts.count("GraphLaunch"), kSteps);
    EXPECT_EQ(counts.count("LaunchKernel"), 0);
    EXPECT_EQ(counts.count("Memcpy"), 2 * kSteps);
    EXPECT_EQ(counts.count("Memset"), 0);
    EXPECT_EQ(counts.num_allocations(), 0);
    EXPECT_LE(counts.num_synchronisations(), kSteps);
    EXPECT_EQ(calls.num_module_loads(), 0);
    for (const auto& [name, count] : counts.by_name) {
      std::printf("%s: %.2f a step\n", name.c_str(), static_cast<double>(count) / kSteps);
    }
  }
}

// Requests of an engine, and waiting for their ends.
class Requests {
 public:
  void receive(const std::vector<TokenEvent>& events) {
    const std::lock_guard lock(mutex_);
    for (const TokenEvent& event : events) {
      EXPECT_FALSE(event.error) << event.error->message;
      if (event.finish) done_.insert(event.request_id);
    }
    changed_.notify_all();
  }
  RequestId submit(Engine& engine, const std::string& adapter) {
    Request request = {.id = ++last_id_,
                       .prompt = {1, 2, 3, 4, 5},
                       .adapter = adapter,
                       .sampling = {.temperature = 0.0f, .max_tokens = 16, .ignore_eos = true}};
    EXPECT_TRUE(engine.submit(std::move(request)).ok());
    return last_id_;
  }
  void wait(RequestId id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_.contains(id); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<RequestId> done_;
  RequestId last_id_ = 0;
};

// An adapter is loaded, used beside base requests, and unloaded, `rounds` times: more of them than
// there are slots.
void churn(AdapterStore& adapters, Engine& engine, Requests& requests, int first, int rounds) {
  for (int i = first; i < first + rounds; ++i) {
    const std::string name = "adapter-" + std::to_string(i);
    ASSERT_TRUE(adapters.load(name, std::to_string(i)).ok());
    const RequestId base = requests.submit(engine, "");
    const RequestId adapted = requests.submit(engine, name);
    requests.wait(base);
    requests.wait(adapted);
    if (i % 2 == 0) {
      ASSERT_TRUE(adapters.unload(name).ok());
    }
  }
}

TEST_P(StepCalls, StepsAllocateNothingLoadNoModuleAndWaitOnceWhileAdaptersComeAndGo) {
  constexpr int kMaxLoras = 2;
  constexpr int kRounds = 8;
  ApiCalls calls;
  DummyRun run = make_run(GetParam(), kMaxLoras);
  EXPECT_GT(calls.all().num_allocations(), 0);
  Requests requests;
  const std::unique_ptr<Engine> engine =
      start_engine({.max_num_seqs = kMaxSeqs,
                    .max_num_batched_tokens = 64,
                    .max_model_len = kMaxLen,
                    .max_loras = kMaxLoras},
                   std::move(run.executor), run.adapters.get(),
                   [&](std::vector<TokenEvent>&& events) { requests.receive(events); })
          .value();
  churn(*run.adapters, *engine, requests, /*first=*/0, /*rounds=*/3);
  const uint64_t steps_before = engine->stats().num_steps;
  calls.reset();
  churn(*run.adapters, *engine, requests, /*first=*/3, kRounds);
  const auto num_steps = static_cast<int64_t>(engine->stats().num_steps - steps_before);
  EXPECT_GE(num_steps, 50);
  EXPECT_EQ(calls.num_module_loads(), 0);
  EXPECT_EQ(calls.all().num_allocations(), 0);
  // Threads that bring adapters wait for their copies; the one that runs steps launches graphs.
  int num_stepping = 0;
  for (const auto& [thread, counts] : calls.by_thread()) {
    if (counts.count("GraphLaunch") == 0) continue;
    ++num_stepping;
    EXPECT_LE(counts.num_synchronisations(), num_steps);
    std::printf("%lld steps, %lld waits, %lld graphs\n", static_cast<long long>(num_steps),
                static_cast<long long>(counts.num_synchronisations()),
                static_cast<long long>(counts.count("GraphLaunch")));
  }
  EXPECT_EQ(num_stepping, 1);
}

INSTANTIATE_TEST_SUITE_P(Models, StepCalls, ::testing::ValuesIn(kModels), [](const auto& info) {
  std::string name = info.param;
  std::erase(name, '-');
  return name;
});

}  // namespace
}  // namespace medley::testing
