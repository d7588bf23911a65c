#include <algorithm>

#include "spec/decoder_fields.h"
#include "spec/families.h"

namespace medley {

// Format: Qwen/Qwen3-30B-A3B's config.json and transformers' Qwen3MoeConfig.
ModelSpec read_qwen3_moe(JsonFields& fields) {
  ModelSpec spec = read_decoder(fields, {});
  spec.attention.qk_norm = true;
  read_rope(fields, {}, spec);
  fields.require("use_sliding_window", {"false"}, "sliding windows are not supported here");
  fields.ignore({"sliding_window", "router_aux_loss_coef", "output_router_logits"});

  const std::vector<int64_t> dense = fields.integers("mlp_only_layers");
  const int sparse_step = fields.size("decoder_sparse_step", 1);
  bool any_moe = false;
  bool any_dense = false;
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    const bool moe = (layer + 1) % sparse_step == 0 &&
                     std::find(dense.begin(), dense.end(), layer) == dense.end();
    spec.layers[layer].moe = moe;
    any_moe |= moe;
    any_dense |= !moe;
  }

  const int num_experts = read_aliased_size(fields, "num_experts", "num_local_experts", 1 << 16);
  const int experts_per_token = static_cast<int>(
      fields.integer("num_experts_per_tok", std::min(8, num_experts), 1, num_experts));
  const int intermediate =
      static_cast<int>(fields.integer("moe_intermediate_size", std::nullopt, 1, 1 << 22));
  const bool normalize = fields.boolean("norm_topk_prob", false);
  if (any_moe) {
    spec.moe = MoeSpec{.num_experts = num_experts,
                       .experts_per_token = experts_per_token,
                       .intermediate_size = intermediate,
                       .router = RouterKind::kSoftmaxThenTopK,
                       .normalize_topk = normalize};
  }
  fields.ignore({"intermediate_size"});
  if (any_dense) spec.mlp = MlpSpec{.intermediate_size = fields.size("intermediate_size")};
  return spec;
}

}  // namespace medley
