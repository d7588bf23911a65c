#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "engine/testing/fake_adapter_store.h"
#include "engine/testing/fake_executor.h"
#include "engine/testing/fake_model.h"

namespace medley::testing {

inline constexpr int64_t kVocab = 1000;

inline ExecutorDesc executor_desc(int num_pages = 64) {
  return {.step = {.max_rows = 32, .max_seqs = 8, .max_pages = 2 * num_pages},
          .num_pages = num_pages,
          .page_size = 4,
          .vocab_size = kVocab};
}

inline EngineOptions engine_options() {
  return {.max_num_seqs = 8, .max_num_batched_tokens = 32, .max_model_len = 64, .max_loras = 2};
}

inline Request request(RequestId id, int num_prompt, int max_tokens, std::string adapter = "") {
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
      EXPECT_EQ(got[i].token.logprob, fake_logprob(id, i + 1));
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

}  // namespace medley::testing
