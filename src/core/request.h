#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace medley {

using RequestId = uint64_t;

struct LogitBias {
  int32_t token_id = 0;
  float bias = 0.0f;  // added to its logit
};

struct SamplingParams {
  float temperature = 1.0f;  // 0 = greedy
  float top_p = 1.0f;
  int top_k = 0;  // 0 = off
  float min_p = 0.0f;
  uint64_t seed = 0;  // drawn by the server when the client gives none
  int max_tokens = 16;
  int min_tokens = 0;  // end and stop tokens are ruled out before so many
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;  // besides the model's own end tokens
  int num_top_logprobs = -1;        // -1: no log-probabilities wanted; 0: only the sampled token's
  int num_prompt_logprobs = -1;     // the same for the prompt's tokens
  float repetition_penalty = 1.0f;  // of prompt and output: divides positive logits
  float frequency_penalty = 0.0f;   // of the output: subtracted per occurrence
  float presence_penalty = 0.0f;    // of the output: subtracted once
  std::vector<LogitBias> logit_bias;
};

// One sequence to be generated, as the engine sees it: token ids only.
struct Request {
  RequestId id = 0;  // unique for the life of the server
  std::vector<int32_t> prompt;
  std::string adapter;  // empty = base model
  SamplingParams sampling;
  int64_t arrival_ns = 0;
};

}  // namespace medley
