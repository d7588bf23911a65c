#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "api/request.h"

namespace medley::api {

// One token and its natural log-probability. `bytes` is the token's text, possibly part of a
// character.
struct LogprobEntry {
  int32_t token_id = 0;
  float logprob = 0.0f;
  std::string bytes;
  int rank = 0;  // place among all tokens, from 1; of a prompt's tokens only
};

struct TokenLogprobs {
  LogprobEntry token;
  std::vector<LogprobEntry> top;  // best first
  size_t text_offset = 0;         // characters of the choice's tokens before this one
  bool is_first = false;          // of a prompt: nothing is before it, so it has no log-probability
};

// What ended a choice besides the model's own end token: a stop token or a stop string.
using StopReason = std::variant<std::monostate, int32_t, std::string>;

// A choice as a whole, or what is new of it in one chunk of a stream.
struct Choice {
  int index = 0;
  std::string text;
  std::optional<std::string> reasoning;  // chat, where the model's format has it
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprobs> logprobs;
  std::optional<std::string> finish_reason;
  StopReason stop_reason;
  std::vector<int32_t> prompt_token_ids;  // only where they are to be shown
  std::vector<TokenLogprobs> prompt_logprobs;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompts, found in the prefix cache
};

// What all bytes of one answer share.
struct ResponseHead {
  Shape shape = Shape::kChat;
  std::string id;
  std::string model;
  int64_t created = 0;  // seconds since the epoch
  bool logprobs = false;
  bool prompt_logprobs = false;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
};

// The body of an answer that is not streamed.
std::string render_response(const ResponseHead& head, const std::vector<Choice>& choices,
                            const Usage& usage);

// Server-sent events, each "data: {...}\n\n".
// The chunk that opens a chat choice: the role, and the prompt's ids where they are to be shown.
std::string render_first_chunk(const ResponseHead& head, const Choice& choice);
std::string render_chunk(const ResponseHead& head, const Choice& choice,
                         const std::optional<Usage>& usage);
std::string render_usage_chunk(const ResponseHead& head, const Usage& usage);
std::string render_error_event(const std::string& error_body);
inline constexpr const char* kDoneEvent = "data: [DONE]\n\n";

}  // namespace medley::api
