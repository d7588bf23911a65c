#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/request.h"
#include "text/chat.h"

namespace medley::api {

enum class Shape : uint8_t { kChat, kCompletion };

// Text to be tokenised, or token ids.
using Prompt = std::variant<std::string, std::vector<int32_t>>;

// What a client asked for in the body of /v1/chat/completions or /v1/completions. Values are
// checked for type and range; absent ones stay absent until the model's defaults are known.
struct GenerationRequest {
  Shape shape = Shape::kChat;
  std::string model;
  std::string request_id;  // the client's own, or empty

  // Chat.
  text::ChatInput chat;  // messages with a role each, otherwise unchecked
  bool include_reasoning = true;

  // Completion.
  std::vector<Prompt> prompts;
  bool echo = false;  // with log-probabilities: the prompt's too

  bool add_special_tokens = false;  // to text; true by default for completions
  std::optional<float> temperature, top_p, min_p;
  std::optional<float> repetition_penalty, frequency_penalty, presence_penalty;
  std::vector<LogitBias> logit_bias;  // ids unchecked
  std::optional<int> top_k;           // 0 = off
  std::optional<uint64_t> seed;
  std::optional<int> max_tokens;  // 0 only with echo: the prompt alone is the answer
  int min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  int n = 1;                     // choices per prompt
  int num_top_logprobs = -1;     // -1: no log-probabilities
  int num_prompt_logprobs = -1;  // the same for the prompt

  bool stream = false;
  bool include_usage = false;           // a last chunk with the usage
  bool continuous_usage_stats = false;  // usage so far in every chunk
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;

  // Names that mean nothing to any server we know; reported, not refused.
  std::vector<std::string> unknown_fields;

  size_t num_prompts() const { return shape == Shape::kChat ? 1 : prompts.size(); }
  bool is_prompt_only() const { return max_tokens == 0; }
  bool has_echoed_logprobs() const { return echo && num_top_logprobs >= 0; }
  size_t num_choices() const { return num_prompts() * static_cast<size_t>(n); }
};

}  // namespace medley::api
