// Models of dummy weights, served: what they answer means nothing, but must look like answers.

#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>

#include "cpu/cpu_backend.h"
#include "engine/model_executor.h"
#include "engine/start_engine.h"
#include "model/model.h"
#include "spec/read_spec.h"
#include "weights/dummy_weights.h"

namespace medley {
namespace {

constexpr int kNumPrompts = 16;
constexpr int kPromptTokens = 6;
constexpr int kOutputTokens = 8;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  bool done = false;
  std::string error;
};

ModelSpec golden_spec(const std::string& model) {
  const char* root = std::getenv("MEDLEY_SOURCE_DIR");
  std::ifstream file(std::string(root != nullptr ? root : ".") + "/tests/golden/" + model +
                     "/config.json");
  return read_model_spec(std::string(std::istreambuf_iterator<char>(file), {})).value();
}

class Answers {
 public:
  void receive(std::vector<TokenEvent>&& events) {
    const std::lock_guard lock(mutex_);
    for (const TokenEvent& event : events) {
      Answer& answer = answers_[event.request_id];
      if (event.token_id) {
        answer.tokens.push_back(*event.token_id);
        answer.logprobs.push_back(event.logprob);
        for (const TokenLogprob& top : event.top_logprobs) answer.logprobs.push_back(top.logprob);
      }
      if (event.error) answer.error = event.error->message;
      answer.done |= event.finish.has_value();
    }
    changed_.notify_all();
  }
  Answer wait(RequestId id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return answers_[id].done; });
    return answers_[id];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Answer> answers_;
};

std::vector<Answer> answers_of(const ModelSpec& spec, uint64_t seed) {
  const DummyWeights dummy = DummyWeights::make(spec, seed).value();
  const ModelWeights weights = read_model_weights(spec, dummy.tensors()).value();
  const std::unique_ptr<Backend> backend = make_cpu_backend({.num_threads = 2});
  const StepDesc step{.max_rows = 64, .max_seqs = kNumPrompts, .max_pages = kNumPrompts * 4};
  std::unique_ptr<Model> model =
      Model::create(spec, weights, *backend,
                    {.dtype = DType::kBF16, .max_rows = step.max_rows, .max_seqs = step.max_seqs})
          .value();
  Answers answers;
  const std::unique_ptr<Engine> engine =
      start_engine(
          {.max_num_seqs = step.max_seqs,
           .max_num_batched_tokens = step.max_rows,
           .max_model_len = 64},
          make_model_executor(*backend, std::move(model), {.step = step, .num_pages = 64}).value(),
          /*adapters=*/nullptr,
          [&](std::vector<TokenEvent>&& events) { answers.receive(std::move(events)); })
          .value();
  for (int id = 1; id <= kNumPrompts; ++id) {
    Request request{.id = static_cast<RequestId>(id),
                    .sampling = {.temperature = 0.0f,
                                 .max_tokens = kOutputTokens,
                                 .ignore_eos = true,
                                 .num_top_logprobs = 5}};
    for (int i = 0; i < kPromptTokens; ++i) {
      request.prompt.push_back((37 * id + 11 * i * id) % static_cast<int>(spec.vocab_size));
    }
    EXPECT_TRUE(engine->submit(std::move(request)).ok());
  }
  std::vector<Answer> all;
  for (int id = 1; id <= kNumPrompts; ++id) all.push_back(answers.wait(id));
  return all;
}

class DummyModel : public ::testing::TestWithParam<const char*> {};

TEST_P(DummyModel, AnswersAreFiniteDifferAndRepeatWithTheSeed) {
  const ModelSpec spec = golden_spec(GetParam());
  const std::vector<Answer> answers = answers_of(spec, 1);
  std::set<int32_t> first_tokens;
  int changes = 0;
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.error, "");
    ASSERT_EQ(answer.tokens.size(), size_t{kOutputTokens});
    for (const float logprob : answer.logprobs) EXPECT_TRUE(std::isfinite(logprob));
    first_tokens.insert(answer.tokens[0]);
    for (int i = 1; i < kOutputTokens; ++i) changes += answer.tokens[i] != answer.tokens[i - 1];
  }
  EXPECT_GT(first_tokens.size(), 8u);
  EXPECT_GT(changes, kNumPrompts * (kOutputTokens - 1) / 2);

  const std::vector<Answer> again = answers_of(spec, 1);
  const std::vector<Answer> other = answers_of(spec, 2);
  int equal = 0;
  for (int i = 0; i < kNumPrompts; ++i) {
    EXPECT_EQ(again[i].tokens, answers[i].tokens);
    equal += other[i].tokens == answers[i].tokens;
  }
  EXPECT_LT(equal, kNumPrompts / 2);
}

INSTANTIATE_TEST_SUITE_P(Models, DummyModel,
                         ::testing::Values("gptoss-mxfp4", "gptoss-bf16", "qwen3moe-norm",
                                           "qwen3-tied", "llama3-untied"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](unsigned char c) { return !std::isalnum(c); });
                           return name;
                         });

}  // namespace
}  // namespace medley
