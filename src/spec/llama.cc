#include "spec/decoder_fields.h"
#include "spec/families.h"

namespace medley {

// Format: meta-llama/Llama-3.3-70B-Instruct's config.json and transformers' LlamaConfig.
ModelSpec read_llama(JsonFields& fields) {
  ModelSpec spec = read_decoder(fields, {});
  read_rope(fields, {}, spec);
  fields.require("mlp_bias", {"false"}, "MLP biases are not supported");
  spec.mlp = MlpSpec{.intermediate_size = fields.size("intermediate_size")};
  return spec;
}

}  // namespace medley
