#include "engine/testing/fake_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace medley::testing {
namespace {

uint64_t mix(uint64_t h, uint64_t value) {  // splitmix64's finaliser
  h ^= value + 0x9e3779b97f4a7c15u;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

uint64_t fake_adapter_hash(std::string_view content) {
  return mix(1, std::hash<std::string_view>()(content));
}

int32_t fake_next_token(std::span<const FakeKey> tokens, const FakeSampling& sampling,
                        int64_t vocab_size) {
  uint64_t h = mix(sampling.seed, static_cast<uint64_t>(sampling.temperature * 1000));
  h = mix(mix(h, static_cast<uint64_t>(sampling.presence_penalty * 1000)), sampling.num_outputs);
  for (const FakeKey& key : tokens) h = mix(mix(h, key.token_id), key.adapter_hash);
  const auto applies = [&](const LogitEdit& e) { return sampling.num_outputs < e.num_outputs; };
  for (const LogitEdit& edit : sampling.edits) {
    if (!applies(edit) || std::isinf(edit.add)) continue;
    h = mix(mix(h, edit.token_id), static_cast<uint64_t>(edit.add * 1000));
  }
  int32_t token = static_cast<int32_t>(h % vocab_size);
  while (std::ranges::any_of(sampling.edits, [&](const LogitEdit& e) {
    return e.token_id == token && applies(e) && std::isinf(e.add);
  })) {
    token = static_cast<int32_t>((token + 1) % vocab_size);
  }
  return token;
}

float fake_logprob(int32_t token_id, int64_t position) {
  return -0.125f * static_cast<float>(1 + (token_id * 7 + position) % 64);
}

FakeAnswer fake_answer(const Request& request, const EngineOptions& options, int64_t vocab_size) {
  const SamplingParams& s = request.sampling;
  const uint64_t adapter = fake_adapter_hash(request.adapter);
  std::vector<FakeKey> tokens;
  for (const int32_t id : request.prompt) tokens.push_back({id, adapter});
  std::vector<LogitEdit> edits;
  for (const LogitBias& bias : s.logit_bias) edits.push_back({bias.token_id, bias.bias});
  const float never = -std::numeric_limits<float>::infinity();
  for (const int32_t id : options.eos_token_ids) edits.push_back({id, never, s.min_tokens});
  for (const int32_t id : s.stop_token_ids) edits.push_back({id, never, s.min_tokens});
  FakeAnswer answer;
  while (true) {
    const int32_t id = fake_next_token(tokens,
                                       {.temperature = s.temperature,
                                        .presence_penalty = s.presence_penalty,
                                        .seed = s.seed,
                                        .num_outputs = static_cast<int64_t>(answer.tokens.size()),
                                        .edits = edits},
                                       vocab_size);
    tokens.push_back({id, adapter});
    answer.tokens.push_back(id);
    const int num_output = static_cast<int>(answer.tokens.size());
    const bool is_end =
        (!s.ignore_eos && contains(options.eos_token_ids, id)) || contains(s.stop_token_ids, id);
    if (is_end && num_output > s.min_tokens) {
      answer.finish = FinishReason::kStop;
      return answer;
    }
    if (num_output == s.max_tokens ||
        static_cast<int64_t>(tokens.size()) == options.max_model_len) {
      return answer;
    }
  }
}

}  // namespace medley::testing
