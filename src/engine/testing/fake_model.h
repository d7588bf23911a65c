#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "backend/sampler.h"
#include "core/request.h"
#include "core/token_event.h"
#include "engine/engine.h"

namespace medley::testing {

// A token of a cache as the fake model knows it: which token, computed under which adapter.
struct FakeKey {
  int32_t token_id = 0;
  uint64_t adapter_hash = 0;
};

uint64_t fake_adapter_hash(std::string_view content);  // empty = base

// How the next token is chosen.
struct FakeSampling {
  float temperature = 1.0f;
  float presence_penalty = 0.0f;
  uint64_t seed = 0;
  int64_t num_outputs = 0;  // so far
  std::span<const LogitEdit> edits;
};

// The "model": a hash of everything that may matter to the next token, and of nothing else. A token
// that is ruled out gives way to the next id; edits with other values are part of the hash.
int32_t fake_next_token(std::span<const FakeKey> tokens, const FakeSampling& sampling,
                        int64_t vocab_size);
float fake_logprob(int32_t token_id, int64_t position);

struct FakeAnswer {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::kLength;
};

// What a synchronous engine that serves nobody else would answer.
FakeAnswer fake_answer(const Request& request, const EngineOptions& options, int64_t vocab_size);

}  // namespace medley::testing
