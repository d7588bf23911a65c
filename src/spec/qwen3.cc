#include "spec/decoder_fields.h"
#include "spec/families.h"

namespace medley {

// Format: Qwen/Qwen3-32B's config.json and transformers' Qwen3Config.
ModelSpec read_qwen3(JsonFields& fields) {
  ModelSpec spec = read_decoder(fields, {.head_dim = 128});
  spec.attention.qk_norm = true;
  read_rope(fields, {}, spec);

  const bool use_window = fields.boolean("use_sliding_window", false);
  const int window = use_window ? fields.size("sliding_window", 4096) : 0;
  const int64_t first_sliding = fields.integer("max_window_layers", 28, 0);
  fields.ignore({"sliding_window"});
  const std::vector<bool> sliding = read_sliding_layers(
      fields, spec.num_layers(), [&](int layer) { return use_window && layer >= first_sliding; });
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    if (sliding[layer] && !use_window) {
      fields.fail("layer_types", "use_sliding_window must be true for sliding_attention",
                  ErrorCode::kInvalidArgument);
    }
    spec.layers[layer].window = sliding[layer] ? window : 0;
  }
  spec.mlp = MlpSpec{.intermediate_size = fields.size("intermediate_size")};
  return spec;
}

}  // namespace medley
