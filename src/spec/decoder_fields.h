#pragma once

#include <string_view>

#include "spec/json_fields.h"
#include "spec/model_spec.h"

namespace medley {

// What the families' config.json have in common.

// Defaults that transformers' config classes disagree on.
struct DecoderDefaults {
  double norm_eps = 1e-6;
  int head_dim = 0;  // 0: hidden_size / num_attention_heads
  bool attention_bias = false;
};

// Sizes, attention, dtype, head tying; one LayerSpec per layer, as yet all full attention with
// rope. Also takes the fields that never change a logit.
ModelSpec read_decoder(JsonFields& fields, const DecoderDefaults& defaults);

// A size that goes by two names; both must agree when both are there.
int read_aliased_size(JsonFields& fields, std::string_view name, std::string_view alias, int max);

// layer_types, if present, names each layer's attention and must have an entry for each: true where
// it is "sliding_attention". `fallback(layer)` answers where it is absent.
template <class Fallback>
std::vector<bool> read_sliding_layers(JsonFields& fields, int num_layers, Fallback fallback) {
  std::vector<bool> sliding(num_layers);
  const std::vector<std::string> types = fields.strings("layer_types");
  if (!types.empty() && types.size() != sliding.size()) {
    fields.fail("layer_types", "expected one entry per layer", ErrorCode::kInvalidArgument);
    return sliding;
  }
  for (int layer = 0; layer < num_layers; ++layer) {
    sliding[layer] = types.empty() ? fallback(layer) : types[layer] == "sliding_attention";
    if (!types.empty() && !sliding[layer] && types[layer] != "full_attention") {
      fields.fail("layer_types", "expected full_attention or sliding_attention");
    }
  }
  return sliding;
}

// Position encoding in either spelling: rope_theta + rope_scaling (transformers 4) or
// rope_parameters (5). `defaults` holds where neither is there. Sets spec.rope, and raises
// spec.max_position to what YaRN's factor allows.
void read_rope(JsonFields& fields, const RopeSpec& defaults, ModelSpec& spec);

}  // namespace medley
