#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "core/request.h"

namespace medley {

enum class FinishReason : uint8_t {
  kStop,  // an end token or stop token id; a stop string is found by the output worker, which then
          // aborts
  kLength,  // max_tokens, or the context is full
  kAbort,   // the caller aborted
  kError,
};

const char* to_string(FinishReason reason);  // as OpenAI spells it where it has a word

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0.0f;
};

// A token of the prompt, scored by the model that has read what is before it.
struct PromptLogprob {
  TokenLogprob token;
  int rank = 0;                   // place among all tokens, from 1
  std::vector<TokenLogprob> top;  // best first
};

// What the engine says of one request after one step: scored tokens of its prompt, a new token, the
// end, or several of them. After the event with `finish` set nothing more comes for that request.
struct TokenEvent {
  RequestId request_id = 0;
  // When asked for: the next tokens of the prompt, from its second on, in order. All of them come
  // before the first token or with it.
  std::vector<PromptLogprob> prompt_logprobs;
  std::optional<int32_t> token_id;
  float logprob = 0.0f;                    // when asked for
  std::vector<TokenLogprob> top_logprobs;  // best first, when asked for
  std::optional<FinishReason> finish;
  std::optional<int32_t> stop_token_id;  // the end or stop token that ended it (it is token_id too)
  std::optional<Error> error;            // with kError
  int64_t time_ns = 0;                   // when the token became known to the host
  int64_t scheduled_ns = 0;              // when the request first entered a step; 0: it never did
  int64_t num_cached_tokens = 0;         // of its prompt, found in the prefix cache then
};

}  // namespace medley
