#pragma once

#include <optional>

#include "api/request.h"
#include "base/error.h"
#include "core/request.h"

namespace medley::api {

// What a request gets where it says nothing: generation_config.json's values, as with vLLM.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
};

struct ContextLimits {
  int64_t prompt_tokens = 0;
  int64_t max_model_len = 0;  // prompt and output together
};

// Fills in the defaults. max_tokens defaults to 16 for completions and to the rest of the context
// for chat. kInvalidArgument with both numbers when prompt and output do not fit. The seed is left
// for the caller where the client gave none.
Result<SamplingParams> resolve_sampling(const GenerationRequest& request,
                                        const SamplingDefaults& defaults,
                                        const ContextLimits& limits);

}  // namespace medley::api
