#include <fmt/format.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/start_engine.h"
#include "engine/testing/fake_adapter_store.h"
#include "engine/testing/fake_executor.h"
#include "engine/testing/fake_model.h"

namespace medley {
namespace {

using testing::fake_answer;
using testing::FakeAdapterStore;
using testing::FakeExecutor;

constexpr int64_t kVocab = 1000;
constexpr int64_t kLongNs = 60'000'000'000;

EngineOptions engine_options() {
  return {.max_num_seqs = 8,
          .max_num_batched_tokens = 32,
          .max_model_len = 64,
          .queue_capacity = 200,
          .max_loras = 2};
}

ExecutorDesc executor_desc() {
  return {.step = {.max_rows = 32, .max_seqs = 8, .max_pages = 40},
          .num_pages = 40,
          .page_size = 4,
          .vocab_size = kVocab};
}

Request request(RequestId id, int num_prompt, int max_tokens, std::string adapter = "") {
  Request r = {.id = id, .adapter = std::move(adapter)};
  for (int i = 0; i < num_prompt; ++i) r.prompt.push_back(static_cast<int32_t>(id * 31 + i) % 997);
  r.sampling.max_tokens = max_tokens;
  return r;
}

// Collects events as the server's output worker would.
class Inbox {
 public:
  TokenEventSink sink() {
    return [this](std::vector<TokenEvent>&& events) {
      std::lock_guard lock(mutex_);
      for (TokenEvent& event : events) {
        if (event.token_id) tokens_[event.request_id].push_back(*event.token_id);
        if (event.finish) ends_[event.request_id] = event;
      }
      changed_.notify_all();
    };
  }
  TokenEvent wait_for_end(RequestId id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ends_.contains(id); });
    return ends_[id];
  }
  std::vector<int32_t> tokens(RequestId id) {
    std::lock_guard lock(mutex_);
    return tokens_[id];
  }
  size_t num_ends() {
    std::lock_guard lock(mutex_);
    return ends_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, std::vector<int32_t>> tokens_;
  std::map<RequestId, TokenEvent> ends_;
};

struct Running {
  explicit Running(EngineOptions o = engine_options()) : options(std::move(o)), store(2) {
    for (const char* name : {"a", "b", "c"}) store.add(name);
    auto owned = std::make_unique<FakeExecutor>(executor_desc(), &store);
    executor = owned.get();
    auto result = start_engine(options, std::move(owned), &store, inbox.sink());
    engine = std::move(result).value();
  }

  EngineOptions options;
  FakeAdapterStore store;
  Inbox inbox;
  FakeExecutor* executor;
  std::unique_ptr<Engine> engine;
};

TEST(ThreadedEngine, AnswersSubmissionsOfManyThreads) {
  Running r;
  constexpr int kThreads = 4, kPerThread = 40;
  const auto make = [](int t, int i) {
    const char* adapters[] = {"", "a", "b", "c"};
    return request(1 + t * kPerThread + i, 3 + i % 20, 1 + i % 12, adapters[(t + i) % 4]);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kPerThread; ++i) ASSERT_TRUE(r.engine->submit(make(t, i)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kPerThread; ++i) {
      const Request q = make(t, i);
      EXPECT_EQ(r.inbox.wait_for_end(q.id).finish, FinishReason::kLength);
      EXPECT_EQ(r.inbox.tokens(q.id), fake_answer(q, r.options, kVocab).tokens);
    }
  }
  r.engine->drain(kLongNs);
  const EngineStats stats = r.engine->stats();
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.num_free_pages, stats.num_pages);
}

TEST(ThreadedEngine, SubmissionsAbortsAndStatisticsMayRace) {
  Running r;
  constexpr RequestId kRequests = 150;
  std::thread aborter([&] {
    for (RequestId id = 1; id <= kRequests; id += 2) {
      r.engine->abort(id);  // before, while or after it runs
      EXPECT_TRUE(r.engine->stats().healthy);
    }
  });
  for (RequestId id = 1; id <= kRequests; ++id) {
    ASSERT_TRUE(r.engine->submit(request(id, 5, 20, id % 3 == 0 ? "a" : "")).ok());
  }
  aborter.join();
  for (RequestId id = 1; id <= kRequests; ++id) {
    const Request q = request(id, 5, 20, id % 3 == 0 ? "a" : "");
    std::vector<int32_t> answer = fake_answer(q, r.options, kVocab).tokens;
    const FinishReason finish = *r.inbox.wait_for_end(id).finish;
    if (finish == FinishReason::kAbort) {
      EXPECT_EQ(id % 2, 1u);
      answer.resize(r.inbox.tokens(id).size());
    }
    EXPECT_EQ(r.inbox.tokens(id), answer);
  }
}

TEST(ThreadedEngine, WakesUpWhenAnAdapterArrives) {
  auto store = std::make_unique<FakeAdapterStore>(1);
  store->add("slow", /*num_load_ticks=*/1);
  Inbox inbox;
  auto engine =
      start_engine(engine_options(), std::make_unique<FakeExecutor>(executor_desc(), store.get()),
                   store.get(), inbox.sink());
  ASSERT_TRUE(engine.ok());
  ASSERT_TRUE((*engine)->submit(request(1, 4, 3, "slow")).ok());
  ASSERT_TRUE((*engine)->submit(request(2, 4, 3)).ok());
  inbox.wait_for_end(2);  // "slow" has been asked for: the engine sleeps or is about to
  store->tick();
  EXPECT_EQ(inbox.wait_for_end(1).finish, FinishReason::kLength);
}

TEST(ThreadedEngine, RefusesWhatCannotRun) {
  Running r;
  const auto code = [&](Request q) { return r.engine->submit(std::move(q)).error().code; };
  EXPECT_EQ(code(request(1, 0, 1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(request(2, 3, 0)), ErrorCode::kInvalidArgument);
  Request outside = request(3, 3, 1);
  outside.prompt[1] = kVocab;
  EXPECT_EQ(code(outside), ErrorCode::kInvalidArgument);
  const Result<void> too_long = r.engine->submit(request(4, 64, 1));
  ASSERT_FALSE(too_long.ok());
  EXPECT_NE(too_long.error().message.find("64"), std::string::npos);
  EXPECT_NE(too_long.error().message.find("63"), std::string::npos);
  EXPECT_TRUE(r.engine->submit(request(5, 63, 1)).ok());
  r.inbox.wait_for_end(5);
  EXPECT_EQ(r.inbox.num_ends(), 1u);
}

TEST(ThreadedEngine, AFullQueueIsOverloadAndAbortsStillGetThrough) {
  EngineOptions options = engine_options();
  options.queue_capacity = 3;
  Running r(options);
  r.store.add("never", /*num_load_ticks=*/1000);
  for (RequestId id = 1; id <= 3; ++id) {
    ASSERT_TRUE(r.engine->submit(request(id, 4, 3, "never")).ok());
  }
  EXPECT_EQ(r.engine->submit(request(4, 4, 3)).error().code, ErrorCode::kOverloaded);
  r.engine->abort(2);
  EXPECT_EQ(r.inbox.wait_for_end(2).finish, FinishReason::kAbort);
  r.engine->drain(/*timeout_ns=*/1'000'000);
  EXPECT_EQ(r.inbox.wait_for_end(3).finish, FinishReason::kAbort);
}

TEST(ThreadedEngine, DrainLetsRequestsEndAndTakesNoNewOnes) {
  Running r;
  ASSERT_TRUE(r.engine->submit(request(1, 4, 50)).ok());
  r.engine->drain(kLongNs);
  EXPECT_EQ(r.inbox.wait_for_end(1).finish, FinishReason::kLength);
  EXPECT_EQ(r.engine->submit(request(2, 4, 3)).error().code, ErrorCode::kUnavailable);
}

TEST(ThreadedEngine, DestructionAbortsWhatIsLeft) {
  Inbox inbox;
  FakeAdapterStore store(1);
  store.add("never", 1000);
  {
    auto engine =
        start_engine(engine_options(), std::make_unique<FakeExecutor>(executor_desc(), &store),
                     &store, inbox.sink());
    ASSERT_TRUE(engine.ok());
    ASSERT_TRUE((*engine)->submit(request(1, 4, 60)).ok());
    ASSERT_TRUE((*engine)->submit(request(2, 4, 60, "never")).ok());
  }
  inbox.wait_for_end(1);
  EXPECT_EQ(inbox.wait_for_end(2).finish, FinishReason::kAbort);
}

TEST(ThreadedEngine, ADeviceFaultIsSeenAndRefusesFromThenOn) {
  FakeAdapterStore store(1);
  auto executor = std::make_unique<FakeExecutor>(executor_desc(), &store);
  executor->fail_wait(2);
  Inbox inbox;
  auto engine = start_engine(engine_options(), std::move(executor), &store, inbox.sink());
  ASSERT_TRUE((*engine)->submit(request(1, 4, 60)).ok());
  EXPECT_EQ(inbox.wait_for_end(1).finish, FinishReason::kError);
  (*engine)->drain(kLongNs);
  EXPECT_FALSE((*engine)->stats().healthy);
  EXPECT_EQ((*engine)->submit(request(2, 4, 3)).error().code, ErrorCode::kUnavailable);
}

TEST(ThreadedEngine, OptionsBeyondTheExecutorAreRefused) {
  FakeAdapterStore store(1);
  const auto message = [&](const EngineOptions& options) {
    auto engine = start_engine(options, std::make_unique<FakeExecutor>(executor_desc(), &store),
                               &store, [](auto&&) {});
    return engine.ok() ? "" : engine.error().message;
  };
  EngineOptions options = engine_options();
  EXPECT_EQ(message(options), "");
  options.max_num_seqs = 9;
  EXPECT_EQ(message(options), "max_num_seqs is 9, expected 1 to 8 (sequences of a step)");
  options = engine_options();
  options.max_model_len = 161;  // 40 pages of 4 tokens
  EXPECT_EQ(message(options), "max_model_len is 161, expected 1 to 160 (tokens in all KV pages)");
  options = engine_options();
  options.max_num_batched_tokens = 4;
  EXPECT_EQ(message(options), "max_num_seqs is 8, expected 1 to 4 (max_num_batched_tokens)");
}

}  // namespace
}  // namespace medley
