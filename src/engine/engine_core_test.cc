#include "engine/engine_core.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/testing/fake_adapter_store.h"
#include "engine/testing/fake_executor.h"
#include "engine/testing/fake_model.h"

namespace medley {
namespace {

using testing::fake_answer;
using testing::FakeAdapterStore;
using testing::FakeAnswer;
using testing::FakeExecutor;

constexpr int64_t kVocab = 1000;

ExecutorDesc executor_desc(int num_pages = 64) {
  return {.step = {.max_rows = 32, .max_seqs = 8, .max_pages = 2 * num_pages},
          .num_pages = num_pages,
          .page_size = 4,
          .vocab_size = kVocab};
}

EngineOptions engine_options() {
  return {.max_num_seqs = 8, .max_num_batched_tokens = 32, .max_model_len = 64, .max_loras = 2};
}

Request request(RequestId id, int num_prompt, int max_tokens, std::string adapter = "") {
  Request r = {.id = id, .adapter = std::move(adapter)};
  for (int i = 0; i < num_prompt; ++i) r.prompt.push_back(static_cast<int32_t>(id * 31 + i) % 997);
  r.sampling.max_tokens = max_tokens;
  r.sampling.seed = id;
  return r;
}

// An engine over the fakes that remembers what came out.
struct Harness {
  explicit Harness(EngineOptions o = engine_options(), ExecutorDesc desc = executor_desc())
      : options(std::move(o)), store(2), executor(desc, &store), core(options, executor, &store) {
    store.add("a");
    store.add("b");
    store.add("c");
  }

  bool step() {
    const bool did_something = core.step();
    collect();
    return did_something;
  }
  void collect() {
    for (TokenEvent& event : core.take_events()) {
      for (const PromptLogprob& scored : event.prompt_logprobs) {
        EXPECT_FALSE(tokens.contains(event.request_id)) << "the prompt comes first";
        prompt_logprobs[event.request_id].push_back(scored);
      }
      if (event.token_id) tokens[event.request_id].push_back(*event.token_id);
      EXPECT_FALSE(ends.contains(event.request_id)) << "an event after the end";
      if (event.finish) ends[event.request_id] = event;
    }
  }
  void run() {
    for (int turns = 0; step(); ++turns) ASSERT_LT(turns, 10000);
  }
  void expect_answer(const Request& r) {
    const FakeAnswer answer = fake_answer(r, options, kVocab);
    ASSERT_TRUE(ends.contains(r.id));
    EXPECT_EQ(tokens[r.id], answer.tokens);
    EXPECT_EQ(ends[r.id].finish, answer.finish);
  }
  // All of the prompt but its first token, each once.
  void expect_prompt_logprobs(const Request& r) {
    const std::vector<PromptLogprob>& got = prompt_logprobs[r.id];
    ASSERT_EQ(got.size(), r.prompt.size() - 1);
    for (size_t i = 0; i < got.size(); ++i) {
      const int32_t id = r.prompt[i + 1];
      EXPECT_EQ(got[i].token.token_id, id);
      EXPECT_EQ(got[i].token.logprob, testing::fake_logprob(id, i + 1));
      EXPECT_EQ(got[i].rank, 1 + id % 5);
      ASSERT_EQ(got[i].top.size(), static_cast<size_t>(r.sampling.num_prompt_logprobs));
      for (size_t k = 0; k < got[i].top.size(); ++k) EXPECT_EQ(got[i].top[k].token_id, id + k);
    }
  }
  void expect_all_released() const {
    EXPECT_EQ(core.pages().num_held(), 0);
    EXPECT_EQ(store.num_pins(), 0);
    EXPECT_EQ(core.num_open(), 0);
  }

  EngineOptions options;
  FakeAdapterStore store;
  FakeExecutor executor;
  EngineCore core;
  std::map<RequestId, std::vector<int32_t>> tokens;
  std::map<RequestId, std::vector<PromptLogprob>> prompt_logprobs;
  std::map<RequestId, TokenEvent> ends;
};

TEST(EngineCore, AnswersAsASynchronousEngine) {
  Harness h;
  const Request r = request(1, 5, 9);
  h.core.add(r);
  h.run();
  h.expect_answer(r);
  EXPECT_EQ(h.tokens[1].size(), 9u);
  h.expect_all_released();
}

// Three tokens: prefill, two decodes. Each is launched before the one before it is known, and
// nothing is launched past the third, whose end by length is foreseen.
TEST(EngineCore, IsOneStepAheadAndForeseesTheLength) {
  Harness h;
  h.core.add(request(1, 5, 3));
  h.run();
  EXPECT_EQ(h.executor.trace(), "L0 L1 W0 L2 W1 W2 ");
}

TEST(EngineCore, TheContextEndsARequestToo) {
  Harness h;
  const Request r = request(1, 61, 100);  // 61 + 3 = max_model_len
  h.core.add(r);
  h.run();
  EXPECT_EQ(h.tokens[1].size(), 3u);
  EXPECT_EQ(h.ends[1].finish, FinishReason::kLength);
  h.expect_all_released();
}

// The third token is an end token; when that is known its successor has been launched.
TEST(EngineCore, DiscardsWhatIsComputedPastAStop) {
  Harness h;
  Request r = request(1, 5, 20);
  const FakeAnswer answer = fake_answer(r, h.options, kVocab);
  r.sampling.stop_token_ids = {answer.tokens[2]};
  h.core.add(r);
  h.run();
  EXPECT_EQ(h.executor.trace(), "L0 L1 W0 L2 W1 L3 W2 W3 ");
  h.expect_answer(r);
  EXPECT_EQ(h.tokens[1].size(), 3u);
  EXPECT_EQ(h.ends[1].stop_token_id, answer.tokens[2]);
  EXPECT_EQ(h.core.stats().num_generation_tokens, 3u);
  h.expect_all_released();
}

TEST(EngineCore, MinTokensAndIgnoreEosPutAStopOff) {
  Harness probe;
  Request r = request(1, 5, 6);
  const FakeAnswer plain = fake_answer(r, probe.options, kVocab);
  EngineOptions options = engine_options();
  options.eos_token_ids = {plain.tokens[1]};
  const auto num_tokens = [&](int min_tokens, bool ignore_eos) {
    Harness h(options);
    r.sampling.min_tokens = min_tokens;
    r.sampling.ignore_eos = ignore_eos;
    h.core.add(r);
    h.run();
    return h.tokens[1].size();
  };
  EXPECT_EQ(num_tokens(0, false), 2u);
  EXPECT_EQ(num_tokens(1, false), 2u);  // token 2 is past the first
  EXPECT_EQ(num_tokens(2, false), 6u);
  EXPECT_EQ(num_tokens(0, true), 6u);
}

TEST(EngineCore, LongPromptsAreComputedInChunks) {
  EngineOptions options = engine_options();
  options.max_num_batched_tokens = 10;
  Harness h(options);
  const Request r = request(1, 33, 4);  // 10 + 10 + 10 + 3 rows
  h.core.add(r);
  h.run();
  h.expect_answer(r);
  EXPECT_EQ(h.executor.max_rows_seen(), 10);
  EXPECT_EQ(h.core.stats().num_steps, 4u + 3u);
  EXPECT_EQ(h.core.stats().num_prompt_tokens, 33u);
}

TEST(EngineCore, BaseAndAdaptersShareASteps) {
  Harness h;
  std::vector<Request> requests = {request(1, 4, 6), request(2, 4, 6, "a"), request(3, 4, 6, "b")};
  for (Request& r : requests) {
    r.prompt = {1, 2, 3, 4};
    r.sampling.seed = 0;
    h.core.add(r);
  }
  h.run();
  for (const Request& r : requests) h.expect_answer(r);
  EXPECT_EQ(h.core.stats().num_steps, 6u);
  EXPECT_NE(h.tokens[1], h.tokens[2]);
  EXPECT_NE(h.tokens[2], h.tokens[3]);
  h.expect_all_released();
}

TEST(EngineCore, ARequestWhoseAdapterLoadsHoldsNobodyBack) {
  Harness h;
  h.store.add("slow", /*num_load_ticks=*/1);
  h.core.add(request(1, 4, 3, "slow"));
  h.core.add(request(2, 4, 3));
  h.run();
  EXPECT_TRUE(h.ends.contains(2));
  EXPECT_FALSE(h.ends.contains(1));
  EXPECT_EQ(h.core.stats().waiting_adapters, std::vector<std::string>{"slow"});
  h.store.tick();
  h.run();
  h.expect_answer(request(1, 4, 3, "slow"));
  h.expect_all_released();
}

TEST(EngineCore, AnAdapterLoadsWhileItsRequestWaitsForASeat) {
  EngineOptions options = engine_options();
  options.max_num_seqs = 1;
  Harness h(options);
  h.store.add("slow", /*num_load_ticks=*/1);
  h.core.add(request(1, 4, 20));
  for (int i = 0; i < 3; ++i) h.step();
  h.core.add(request(2, 4, 3, "slow"));
  h.store.tick();
  h.run();
  h.expect_answer(request(2, 4, 3, "slow"));
}

TEST(EngineCore, ARequestThatLacksPagesHoldsNoAdapter) {
  Harness h(engine_options(), executor_desc(/*num_pages=*/16));
  h.core.add(request(1, 40, 10));
  h.core.add(request(2, 40, 3, "a"));
  for (int i = 0; i < 4; ++i) h.step();
  EXPECT_EQ(h.store.num_pins(), 0);
  EXPECT_EQ(h.core.stats().waiting_adapters, std::vector<std::string>{"a"});
  h.run();
  h.expect_answer(request(2, 40, 3, "a"));
  h.expect_all_released();
}

TEST(EngineCore, AnAdapterThatFailsEndsItsOwnRequestsOnly) {
  Harness h;
  h.store.add("broken", 0, /*fails=*/true);
  for (RequestId id = 1; id <= 3; ++id) h.core.add(request(id, 4, 3, id == 2 ? "" : "broken"));
  h.core.add(request(4, 4, 3, "unknown"));
  h.run();
  EXPECT_EQ(h.ends[1].finish, FinishReason::kError);
  EXPECT_EQ(h.ends[1].error->message, "adapter broken is broken");
  EXPECT_EQ(h.ends[3].finish, FinishReason::kError);
  EXPECT_EQ(h.ends[4].error->code, ErrorCode::kNotFound);
  h.expect_answer(request(2, 4, 3));
  h.expect_all_released();
}

// Two slots, three adapters; "a" is flooded. "c" gets the slot of "a" once those before it are
// through, not after the flood.
TEST(EngineCore, AFloodOfOneAdapterGivesItsSlotUp) {
  EngineOptions options = engine_options();
  options.max_num_seqs = 2;
  options.max_loras = 1;
  Harness h(options);
  RequestId id = 1;
  for (; id <= 4; ++id) h.core.add(request(id, 4, 6, "a"));
  h.core.add(request(100, 4, 6, "c"));
  for (int turn = 0; turn < 60 && !h.ends.contains(100); ++turn) {
    h.core.add(request(id++, 4, 6, "a"));
    h.step();
  }
  EXPECT_TRUE(h.ends.contains(100));
  h.run();
  h.expect_answer(request(100, 4, 6, "c"));
  h.expect_all_released();
}

TEST(EngineCore, AnAbortIsAnsweredAtOnceAndItsPagesGoWithTheLaunchedStep) {
  Harness h;
  h.core.add(request(1, 9, 50, "a"));
  for (int i = 0; i < 4; ++i) h.step();
  h.core.abort(1);
  h.collect();
  EXPECT_EQ(h.ends[1].finish, FinishReason::kAbort);
  EXPECT_GT(h.core.pages().num_held(), 0);  // a launched step still writes there
  h.step();
  h.expect_all_released();
  h.core.abort(1);  // ended: ignored
  h.core.abort(77);
  h.collect();
  EXPECT_EQ(h.ends.size(), 1u);
}

TEST(EngineCore, AWaitingRequestCanBeAborted) {
  Harness h;
  h.store.add("slow", 5);
  h.core.add(request(1, 9, 50, "slow"));
  h.run();
  h.core.abort(1);
  h.collect();
  EXPECT_EQ(h.ends[1].finish, FinishReason::kAbort);
  EXPECT_EQ(h.core.num_left_queue(), 1u);
  h.expect_all_released();
}

// 16 pages of 4 tokens; two requests that grow to 60 tokens (15 pages) each.
TEST(EngineCore, PreemptionChangesNoToken) {
  Harness h(engine_options(), executor_desc(/*num_pages=*/16));
  const Request r1 = request(1, 8, 52, "a"), r2 = request(2, 8, 52, "b");
  h.core.add(r1);
  h.core.add(r2);
  h.run();
  EXPECT_GE(h.core.stats().num_preemptions, 1u);
  h.expect_answer(r1);
  h.expect_answer(r2);
  EXPECT_EQ(h.core.stats().num_prompt_tokens, 16u) << "recomputation is not counted";
  h.expect_all_released();
}

Request continuation(RequestId id, const Request& r, const std::vector<int32_t>& output) {
  Request next = request(id, 0, 3, r.adapter);
  next.prompt = r.prompt;
  next.prompt.insert(next.prompt.end(), output.begin(), output.end());
  return next;
}

// Pages of 4. The first computes 9 + 6 tokens, but not the last; the second turn of the chat finds
// 12 of them.
TEST(EngineCore, APrefixIsComputedOnce) {
  Harness h;
  const Request first = request(1, 9, 6);
  h.core.add(first);
  h.run();
  EXPECT_EQ(h.core.pages().num_cached(), 3);
  const Request second = continuation(2, first, h.tokens[1]);
  h.core.add(second);
  h.run();
  h.expect_answer(second);
  EXPECT_EQ(h.core.stats().num_prefix_cache_queries, 9u + 15u);
  EXPECT_EQ(h.core.stats().num_prefix_cache_hits, 12u);
  EXPECT_EQ(h.core.stats().num_prompt_tokens, 9u + 3u);
  EXPECT_EQ(h.core.stats().num_free_pages, 64) << "cached pages can be had";
  h.expect_all_released();
}

// The prompt is whole pages and all of them are there; its last token still has to be computed, and
// that in a page of the sequence's own.
TEST(EngineCore, OneTokenAtLeastIsComputed) {
  Harness h;
  Request r = request(1, 8, 3);
  h.core.add(r);
  h.run();
  r.id = 2;
  h.core.add(r);
  h.run();
  h.expect_answer(r);
  EXPECT_EQ(h.core.stats().num_prefix_cache_hits, 4u);
}

// A running sequence's full pages can be used while it goes on.
TEST(EngineCore, PagesInUseAreShared) {
  Harness h(engine_options(), executor_desc(/*num_pages=*/16));
  Request r = request(1, 33, 12);
  h.core.add(r);
  for (int i = 0; i < 4; ++i) h.step();
  Request other = r;
  other.id = 2;
  h.core.add(other);
  for (int i = 0; i < 2; ++i) h.step();
  EXPECT_EQ(h.core.stats().num_running, 2) << "twice 12 pages are more than there are";
  h.run();
  h.expect_answer(r);
  h.expect_answer(other);
  EXPECT_EQ(h.core.stats().num_prefix_cache_hits, 32u);
  h.expect_all_released();
}

TEST(EngineCore, CachedPagesMakeRoomBeforeAnybodyIsPreempted) {
  Harness h(engine_options(), executor_desc(/*num_pages=*/16));
  for (RequestId id = 1; id <= 6; ++id) {
    const Request r = request(id, 30, 20);
    h.core.add(r);
    h.run();
    h.expect_answer(r);
  }
  EXPECT_EQ(h.core.stats().num_preemptions, 0u);
  EXPECT_GT(h.core.pages().num_cached(), 0);
}

TEST(EngineCore, AdaptersDoNotShareWithBaseNorWithEachOther) {
  Harness h;
  RequestId id = 0;
  for (const int num_hits : {0, 8}) {
    for (const char* adapter : {"", "a", "b"}) {
      const uint64_t before = h.core.stats().num_prefix_cache_hits;
      Request r = request(1, 10, 4, adapter);
      r.id = ++id;
      h.core.add(r);
      h.run();
      h.expect_answer(r);
      EXPECT_EQ(h.core.stats().num_prefix_cache_hits - before, static_cast<uint64_t>(num_hits));
    }
  }
}

// "a" gets new content while a request runs on the old one; "b" gets the old content of "a".
TEST(EngineCore, PagesBelongToAnAdaptersContentNotToItsName) {
  Harness h;
  Request running = request(1, 10, 30, "a");
  h.core.add(running);
  for (int i = 0; i < 3; ++i) h.step();
  h.store.replace("a", "new");
  h.store.replace("b", "a");
  const auto num_hits_of = [&](RequestId id, const std::string& name, const std::string& content) {
    const uint64_t before = h.core.stats().num_prefix_cache_hits;
    Request r = request(1, 10, 4, name);
    r.id = id;
    h.core.add(r);
    h.run();
    r.adapter = content;
    h.expect_answer(r);
    return h.core.stats().num_prefix_cache_hits - before;
  };
  EXPECT_EQ(num_hits_of(2, "a", "new"), 0u);
  EXPECT_EQ(num_hits_of(3, "b", "a"), 8u);
  EXPECT_EQ(num_hits_of(4, "a", "new"), 8u);
  h.expect_answer(running);
}

TEST(EngineCore, APreemptedSequenceFindsItsPages) {
  EngineOptions options = engine_options();
  const auto num_steps = [&](bool enable_prefix_caching) {
    options.enable_prefix_caching = enable_prefix_caching;
    options.max_num_batched_tokens = 8;
    Harness h(options, executor_desc(/*num_pages=*/16));
    const Request r1 = request(1, 8, 30), r2 = request(2, 8, 52);
    h.core.add(r1);
    h.core.add(r2);
    h.run();
    h.expect_answer(r1);
    h.expect_answer(r2);
    EXPECT_EQ(h.core.stats().num_preemptions, 1u);
    EXPECT_EQ(h.core.stats().num_prefix_cache_hits, 0u) << "recomputation is not counted";
    return h.core.stats().num_steps;
  };
  EXPECT_LT(num_steps(true), num_steps(false));
}

// Their rows have to be computed.
TEST(EngineCore, ScoredPromptsAreNotLookedUp) {
  Harness h;
  Request r = request(1, 20, 2);
  h.core.add(r);
  h.run();
  r.id = 2;
  r.sampling.num_prompt_logprobs = 1;
  h.core.add(r);
  h.run();
  h.expect_answer(r);
  h.expect_prompt_logprobs(r);
  EXPECT_EQ(h.core.stats().num_prefix_cache_queries, 20u);
}

TEST(EngineCore, WithoutAPrefixCacheNothingIsKept) {
  EngineOptions options = engine_options();
  options.enable_prefix_caching = false;
  Harness h(options);
  Request r = request(1, 20, 2);
  for (r.id = 1; r.id <= 2; ++r.id) h.core.add(r);
  h.run();
  EXPECT_EQ(h.core.pages().num_free(), 64);
  EXPECT_EQ(h.core.stats().num_prefix_cache_queries, 0u);
  EXPECT_FALSE(h.core.stats().prefix_caching);
}

TEST(EngineCore, LogprobsAreGivenWhenAskedFor) {
  Harness h;
  Request r = request(1, 5, 1);
  r.sampling.num_top_logprobs = 2;
  h.core.add(r);
  h.core.add(request(2, 5, 1));
  h.run();
  const TokenEvent& event = h.ends[1];
  EXPECT_EQ(event.logprob, testing::fake_logprob(*event.token_id, 5));
  ASSERT_EQ(event.top_logprobs.size(), 2u);
  EXPECT_EQ(event.top_logprobs[1].token_id, *event.token_id + 1);
  EXPECT_EQ(event.top_logprobs[1].logprob, event.logprob - 1);
  EXPECT_TRUE(h.ends[2].top_logprobs.empty());
}

// A step has 8 logit rows, so the prompt of 20 takes 8 + 8 + 4, with one for the token to sample.
TEST(EngineCore, PromptLogprobsComeInChunksThatFitTheLogits) {
  Harness h;
  Request r = request(1, 20, 2);
  r.sampling.num_prompt_logprobs = 2;
  h.core.add(r);
  h.run();
  h.expect_answer(r);
  h.expect_prompt_logprobs(r);
  EXPECT_EQ(h.core.stats().num_steps, 3u + 1u);
  EXPECT_TRUE(h.ends[1].top_logprobs.empty());
}

TEST(EngineCore, PromptLogprobsBesideOthers) {
  Harness h;
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 12; ++id) {
    requests.push_back(request(id, 1 + static_cast<int>(id * 5 % 23), 9, id % 3 == 0 ? "a" : ""));
    requests.back().sampling.num_prompt_logprobs = static_cast<int>(id % 4) - 1;
    h.core.add(requests.back());
  }
  h.run();
  for (const Request& r : requests) {
    h.expect_answer(r);
    if (r.sampling.num_prompt_logprobs >= 0) {
      h.expect_prompt_logprobs(r);
    } else {
      EXPECT_FALSE(h.prompt_logprobs.contains(r.id));
    }
  }
  h.expect_all_released();
}

// The device counts outputs for itself; a slot that is set anew is told of those before.
TEST(EngineCore, PreemptionKeepsPromptAndOutputApart) {
  EngineOptions options = engine_options();
  options.eos_token_ids = {3, 2000};  // one is outside the vocabulary
  Harness h(options, executor_desc(/*num_pages=*/16));
  std::vector<Request> requests = {request(1, 8, 52), request(2, 8, 52)};
  for (Request& r : requests) {
    r.sampling.presence_penalty = 0.5f;
    r.sampling.logit_bias = {{7, 2.0f}};
    r.sampling.min_tokens = 52;
    r.sampling.num_prompt_logprobs = 0;
    for (int32_t id = 100; id < 600; ++id) r.sampling.stop_token_ids.push_back(id);
    h.core.add(r);
  }
  h.run();
  EXPECT_GE(h.core.stats().num_preemptions, 1u);
  for (const Request& r : requests) {
    h.expect_answer(r);
    h.expect_prompt_logprobs(r);
    EXPECT_EQ(h.tokens[r.id].size(), 52u);
    for (const int32_t id : h.tokens[r.id]) EXPECT_TRUE(id < 100 || id >= 600) << id;
  }
}

TEST(EngineCore, ADeviceFaultEndsEveryRequestOnce) {
  for (const bool at_launch : {true, false}) {
    Harness h;
    at_launch ? h.executor.fail_launch(3) : h.executor.fail_wait(3);
    h.store.add("slow", 1);
    h.core.add(request(1, 5, 30));
    h.core.add(request(2, 5, 30, "a"));
    h.core.add(request(3, 5, 30, "slow"));
    h.run();
    for (RequestId id = 1; id <= 3; ++id) {
      EXPECT_EQ(h.ends[id].finish, FinishReason::kError);
      EXPECT_EQ(h.ends[id].error->code, ErrorCode::kInternal);
    }
    EXPECT_FALSE(h.core.is_healthy());
    h.expect_all_released();
    h.core.add(request(4, 5, 30));
    h.collect();
    EXPECT_EQ(h.ends[4].finish, FinishReason::kError);
  }
}

}  // namespace
}  // namespace medley
