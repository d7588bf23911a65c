#include <gtest/gtest.h>

#include <random>

#include "api/parse_request.h"

namespace medley::api {
namespace {

const std::vector<std::string> kSeeds = {
    R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a\u00e9"}]}],)"
    R"("stream":true,"stream_options":{"include_usage":true},"n":2,"stop":["a"],"seed":-5,)"
    R"("temperature":0.5,"top_k":-1,"logprobs":true,"top_logprobs":3,"max_tokens":10})",
    R"({"prompt":[[1,2],[3]],"max_tokens":4,"echo":true,"logit_bias":{},"tools":[],"top_p":1e-3})",
    R"({"prompt":"a","logit_bias":{"5":-100,"77":0.5},"prompt_logprobs":3,"repetition_penalty":1.1,)"
    R"("frequency_penalty":-0.5,"presence_penalty":2,"echo":true,"logprobs":1,"max_tokens":0})",
    R"({"prompt":["a","b"],"stop":"x","stop_token_ids":[1],"min_tokens":1,"logprobs":2})"};

const std::vector<std::string> kTokens = {
    "{",  "}",     "[",    "]",       ",",    ":",     "\"",  "null",
    "-1", "1e999", "true", "\\u0000", "\xff", "\\ud8", "0.5", "18446744073709551616"};

// Changes a few bytes: flips, cuts, repeats and inserts what means something to a JSON parser.
std::string mutate(std::string text, std::mt19937_64& random) {
  const int num_changes = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < num_changes && !text.empty(); ++i) {
    const size_t at = random() % text.size();
    switch (random() % 5) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + random() % 8);
        break;
      case 2:
        text.insert(at, kTokens[random() % kTokens.size()]);
        break;
      case 3:
        text.insert(at, text.substr(random() % text.size(), random() % 32));
        break;
      case 4:
        text.resize(at);
        break;
    }
  }
  return text;
}

// Whatever the bytes, the parser answers: a request whose values are in range, or an error that
// says something.
TEST(ParseRequestFuzz, MutatedBodies) {
  std::mt19937_64 random(1);
  int num_accepted = 0;
  constexpr int kRounds = 60000;
  for (int round = 0; round < kRounds; ++round) {
    const std::string body = mutate(kSeeds[random() % kSeeds.size()], random);
    const Shape shape = random() % 2 == 0 ? Shape::kChat : Shape::kCompletion;
    const Result<GenerationRequest> request = parse_request(shape, body);
    if (!request.ok()) {
      ASSERT_FALSE(request.error().message.empty());
      ASSERT_EQ(request.error().code, ErrorCode::kInvalidArgument) << body;
      continue;
    }
    ++num_accepted;
    ASSERT_GE(request->n, 1);
    ASSERT_LE(request->num_choices(), static_cast<size_t>(kMaxChoices));
    ASSERT_LE(request->num_top_logprobs, kMaxTopLogprobs);
    ASSERT_GE(request->max_tokens.value_or(1), request->echo ? 0 : 1);
    ASSERT_LE(request->num_prompt_logprobs, kMaxTopLogprobs);
    ASSERT_GT(request->repetition_penalty.value_or(1.0f), 0.0f);
    for (const LogitBias& entry : request->logit_bias) {
      ASSERT_GE(entry.token_id, 0);
      ASSERT_LE(std::abs(entry.bias), kMaxLogitBias);
    }
    ASSERT_GE(request->temperature.value_or(0.0f), 0.0f) << body;
    if (shape == Shape::kChat) {
      ASSERT_FALSE(request->chat.messages.empty());
    } else {
      ASSERT_FALSE(request->prompts.empty());
    }
  }
  EXPECT_GT(num_accepted, kRounds / 100);  // the mutations are not all rejected at the door
}

}  // namespace
}  // namespace medley::api
