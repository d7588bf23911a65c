#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/testing/engine_harness.h"

namespace medley {
namespace {

using testing::engine_options;
using testing::executor_desc;
using testing::fake_answer;
using testing::FakeAnswer;
using testing::Harness;
using testing::kVocab;
using testing::request;

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
  EXPECT_EQ(h.core.stats().num_step_tokens, 33u + 3u);
  const auto& by_size = h.core.stats().num_steps_by_size;  // up to 1, 8, 16
  EXPECT_EQ(std::vector(by_size.begin(), by_size.begin() + 4), (std::vector<uint64_t>{3, 1, 3, 0}));
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
