#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace medley {

using RequestId = uint64_t;

struct SamplingParams {
  float temperature = 1.0f;  // 0 = greedy
  float top_p = 1.0f;
  int top_k = 0;  // 0 = off
  float min_p = 0.0f;
  uint64_t seed = 0;  // drawn by the server when the client gives none
  int max_tokens = 16;
  int min_tokens = 0;  // no end token and no stop before so many
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;  // besides the model's own end tokens
  int num_top_logprobs = -1;  // -1: no log-probabilities wanted; 0: only the sampled token's
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
