#include "api/sampling.h"

#include <algorithm>

namespace medley::api {
namespace {

constexpr int64_t kDefaultCompletionTokens = 16;

}  // namespace

Result<SamplingParams> resolve_sampling(const GenerationRequest& request,
                                        const SamplingDefaults& defaults,
                                        const ContextLimits& limits) {
  const char* param = request.shape == Shape::kChat ? "messages" : "prompt";
  if (limits.prompt_tokens == 0) {
    return invalid_argument("the prompt has no tokens; at least 1 is needed", param);
  }
  const int64_t room = limits.max_model_len - limits.prompt_tokens;
  if (room < 1) {
    return invalid_argument(
        fmt::format(
            "the prompt has {} tokens; the context is {} tokens, of which at least 1 is for "
            "the output",
            limits.prompt_tokens, limits.max_model_len),
        param);
  }
  int64_t max_tokens = request.shape == Shape::kChat ? room : kDefaultCompletionTokens;
  if (request.max_tokens) {
    max_tokens = *request.max_tokens;
    if (max_tokens > room) {
      return invalid_argument(
          fmt::format("max_tokens is {} and the prompt has {} tokens, {} together; the context is "
                      "{} tokens",
                      max_tokens, limits.prompt_tokens, max_tokens + limits.prompt_tokens,
                      limits.max_model_len),
          "max_tokens");
    }
  }
  max_tokens = std::min(max_tokens, room);
  if (request.is_prompt_only()) max_tokens = 1;  // which is not shown
  if (request.min_tokens > max_tokens) {
    return invalid_argument(fmt::format("min_tokens is {}, but at most {} tokens can be generated",
                                        request.min_tokens, max_tokens),
                            "min_tokens");
  }
  SamplingParams params;
  params.temperature = request.temperature.value_or(defaults.temperature.value_or(1.0f));
  params.top_p = request.top_p.value_or(defaults.top_p.value_or(1.0f));
  params.top_k = request.top_k.value_or(defaults.top_k.value_or(0));
  params.min_p = request.min_p.value_or(defaults.min_p.value_or(0.0f));
  params.seed = request.seed.value_or(0);
  params.max_tokens = static_cast<int>(max_tokens);
  params.min_tokens = request.min_tokens;
  params.ignore_eos = request.ignore_eos;
  params.stop_token_ids = request.stop_token_ids;
  params.num_top_logprobs = request.num_top_logprobs;
  params.num_prompt_logprobs = std::max(
      request.num_prompt_logprobs, request.has_echoed_logprobs() ? request.num_top_logprobs : -1);
  params.repetition_penalty =
      request.repetition_penalty.value_or(defaults.repetition_penalty.value_or(1.0f));
  params.frequency_penalty = request.frequency_penalty.value_or(0.0f);
  params.presence_penalty = request.presence_penalty.value_or(0.0f);
  params.logit_bias = request.logit_bias;
  return params;
}

}  // namespace medley::api
