#pragma once

#include <string_view>

#include "api/request.h"
#include "base/error.h"

namespace medley::api {

inline constexpr int kMaxTopLogprobs = 20;
inline constexpr double kMaxLogitBias = 100.0;
inline constexpr int kMaxChoices = 256;  // prompts times n

// The body of /v1/completions or /v1/chat/completions, as in OpenAI's API reference with vLLM's
// additions. kInvalidArgument (with the byte for malformed JSON, else with `param`) for wrong types
// and values, and for a field that means something and is not implemented.
Result<GenerationRequest> parse_request(Shape shape, std::string_view body);

}  // namespace medley::api
