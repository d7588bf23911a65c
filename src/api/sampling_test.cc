#include "api/sampling.h"

#include <gtest/gtest.h>

namespace medley::api {
namespace {

TEST(Sampling, RequestWinsOverModelWinsOverNeutral) {
  GenerationRequest request;
  request.temperature = 0.0f;
  const SamplingParams params =
      resolve_sampling(request, {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20},
                       {.prompt_tokens = 10, .max_model_len = 100})
          .value();
  EXPECT_EQ(params.temperature, 0.0f);
  EXPECT_EQ(params.top_p, 0.95f);
  EXPECT_EQ(params.top_k, 20);
  EXPECT_EQ(params.min_p, 0.0f);
}

TEST(Sampling, RepetitionPenaltyHasAModelsDefault) {
  GenerationRequest request;
  const ContextLimits limits{.prompt_tokens = 10, .max_model_len = 100};
  EXPECT_EQ(resolve_sampling(request, {}, limits)->repetition_penalty, 1.0f);
  EXPECT_EQ(resolve_sampling(request, {.repetition_penalty = 1.05f}, limits)->repetition_penalty,
            1.05f);
  request.repetition_penalty = 1.2f;
  EXPECT_EQ(resolve_sampling(request, {.repetition_penalty = 1.05f}, limits)->repetition_penalty,
            1.2f);
}

// The engine scores the prompt for whoever wants more of it.
TEST(Sampling, PromptLogprobsServeEchoToo) {
  const auto wanted = [](bool echo, int num_top, int num_prompt) {
    GenerationRequest request{.shape = Shape::kCompletion, .echo = echo};
    request.num_top_logprobs = num_top;
    request.num_prompt_logprobs = num_prompt;
    return resolve_sampling(request, {}, {.prompt_tokens = 10, .max_model_len = 100})
        ->num_prompt_logprobs;
  };
  EXPECT_EQ(wanted(false, 3, -1), -1);
  EXPECT_EQ(wanted(true, -1, -1), -1);
  EXPECT_EQ(wanted(true, 3, -1), 3);
  EXPECT_EQ(wanted(true, 3, 5), 5);
  EXPECT_EQ(wanted(true, 3, 0), 3);
}

TEST(Sampling, APromptAloneTakesOneTokenOfRoom) {
  GenerationRequest request{.shape = Shape::kCompletion, .echo = true, .max_tokens = 0};
  EXPECT_EQ(resolve_sampling(request, {}, {.prompt_tokens = 99, .max_model_len = 100})->max_tokens,
            1);
}

TEST(Sampling, MaxTokensDefaultsPerShape) {
  GenerationRequest request;
  EXPECT_EQ(resolve_sampling(request, {}, {.prompt_tokens = 10, .max_model_len = 100})->max_tokens,
            90);
  request.shape = Shape::kCompletion;
  EXPECT_EQ(resolve_sampling(request, {}, {.prompt_tokens = 10, .max_model_len = 100})->max_tokens,
            16);
  EXPECT_EQ(resolve_sampling(request, {}, {.prompt_tokens = 90, .max_model_len = 100})->max_tokens,
            10);
}

TEST(Sampling, OverLongPromptNamesBothNumbers) {
  const Error error =
      resolve_sampling({}, {}, {.prompt_tokens = 100, .max_model_len = 100}).error();
  EXPECT_EQ(error.param, "messages");
  EXPECT_NE(error.message.find("has 100 tokens; the context is 100 tokens"), std::string::npos)
      << error.message;
}

TEST(Sampling, PromptAndMaxTokensMustFit) {
  GenerationRequest request;
  request.max_tokens = 91;
  const Error error =
      resolve_sampling(request, {}, {.prompt_tokens = 10, .max_model_len = 100}).error();
  EXPECT_EQ(error.param, "max_tokens");
  EXPECT_EQ(error.message,
            "max_tokens is 91 and the prompt has 10 tokens, 101 together; the context is 100 "
            "tokens");
  request.max_tokens = 90;
  EXPECT_EQ(resolve_sampling(request, {}, {.prompt_tokens = 10, .max_model_len = 100})->max_tokens,
            90);
}

TEST(Sampling, EmptyPromptAndTooManyMinTokensAreRefused) {
  EXPECT_FALSE(resolve_sampling({}, {}, {.prompt_tokens = 0, .max_model_len = 100}).ok());
  GenerationRequest request;
  request.min_tokens = 91;
  EXPECT_EQ(
      resolve_sampling(request, {}, {.prompt_tokens = 10, .max_model_len = 100}).error().param,
      "min_tokens");
}

}  // namespace
}  // namespace medley::api
