#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "spec/model_spec.h"

namespace medley {

// From config.json's text. Refuses unknown architectures, and known fields that change the result
// with a value that is not implemented, by name and value. Both spellings: transformers 4
// (rope_theta, rope_scaling) and 5 (rope_parameters).
Result<ModelSpec> read_model_spec(std::string_view config_json);

// generation_config.json: end tokens and default sampling. Fields absent there are absent here.
struct GenerationConfig {
  std::vector<int32_t> eos_token_ids;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
  std::optional<bool> do_sample;
};
// `config_json` supplies eos_token_id where generation_config.json (may be empty text) has none.
Result<GenerationConfig> read_generation_config(std::string_view generation_config_json,
                                                std::string_view config_json);

}  // namespace medley
