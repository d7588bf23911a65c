#include <cmath>

#include "spec/decoder_fields.h"
#include "spec/families.h"

namespace medley {
namespace {

// The published checkpoints keep everything but the experts in bfloat16.
WeightFormat read_quantization(JsonFields& fields) {
  if (!fields.has("quantization_config")) return WeightFormat::kFloat;
  JsonFields quantization = fields.object("quantization_config");
  quantization.require("quant_method", {"\"mxfp4\""}, "expected mxfp4");
  quantization.ignore({"dequantize"});
  for (const std::string& pattern : quantization.strings("modules_to_not_convert")) {
    if (pattern.find("experts") != std::string::npos) {
      quantization.fail("modules_to_not_convert", "experts that are not MXFP4 are not supported");
    }
  }
  return WeightFormat::kMxfp4;
}

RopeSpec default_rope() {
  return {.theta = 150000.0,
          .scaling = RopeScaling::kYarn,
          .factor = 32.0,
          .original_max_position = 4096,
          .beta_fast = 32.0,
          .beta_slow = 1.0,
          .truncate = false,
          .attention_factor = 0.1 * std::log(32.0) + 1.0};
}

}  // namespace

// Format: openai/gpt-oss-20b's config.json and transformers' GptOssConfig.
ModelSpec read_gpt_oss(JsonFields& fields) {
  ModelSpec spec = read_decoder(fields, {.norm_eps = 1e-5, .head_dim = 64, .attention_bias = true});
  spec.attention.sinks = true;
  read_rope(fields, default_rope(), spec);
  fields.ignore({"initial_context_length", "router_aux_loss_coef", "output_router_logits"});

  const std::vector<bool> sliding =
      read_sliding_layers(fields, spec.num_layers(), [](int layer) { return layer % 2 == 0; });
  const int window = fields.size("sliding_window", 128);
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    spec.layers[layer] = {.window = sliding[layer] ? window : 0, .moe = true};
  }

  MoeSpec moe;
  moe.num_experts = read_aliased_size(fields, "num_local_experts", "num_experts", 1 << 16);
  moe.experts_per_token =
      read_aliased_size(fields, "num_experts_per_tok", "experts_per_token", moe.num_experts);
  moe.intermediate_size =
      static_cast<int>(fields.integer("intermediate_size", std::nullopt, 1, 1 << 22));
  moe.router = RouterKind::kTopKThenSoftmax;
  moe.router_bias = true;
  moe.expert_bias = true;
  moe.activation = {.kind = Activation::kClampedSwiGlu,
                    .limit = static_cast<float>(fields.number("swiglu_limit", 7.0)),
                    .alpha = static_cast<float>(fields.number("swiglu_alpha", 1.702))};
  moe.format = read_quantization(fields);
  if (moe.format == WeightFormat::kMxfp4 &&
      (spec.hidden_size % 32 != 0 || moe.intermediate_size % 32 != 0)) {
    fields.fail("intermediate_size", "MXFP4 needs it and hidden_size to be multiples of 32",
                ErrorCode::kInvalidArgument);
  }
  spec.moe = moe;

  spec.names.router = "router";
  spec.names.experts =
      moe.format == WeightFormat::kMxfp4 ? ExpertLayout::kGptOssMxfp4 : ExpertLayout::kGptOssBf16;
  return spec;
}

}  // namespace medley
