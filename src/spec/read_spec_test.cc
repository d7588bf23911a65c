#include "spec/read_spec.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace medley {
namespace {

using nlohmann::json;

std::string golden_text(const std::string& name) {
  const char* root = std::getenv("MEDLEY_SOURCE_DIR");
  std::ifstream in(std::string(root == nullptr ? "." : root) + "/tests/golden/" + name);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}
json golden_config(const std::string& model) {
  return json::parse(golden_text(model + "/config.json"));
}

ModelSpec read(const json& config) {
  Result<ModelSpec> spec = read_model_spec(config.dump());
  EXPECT_TRUE(spec.ok()) << (spec.ok() ? "" : spec.error().message);
  return spec.ok() ? *spec : ModelSpec{};
}

// The golden config with one field changed is refused with an error that names field and value.
void expect_refused(const std::string& model, const std::string& field, const json& value) {
  json config = golden_config(model);
  config[json::json_pointer("/" + field)] = value;
  const Result<ModelSpec> spec = read_model_spec(config.dump());
  ASSERT_FALSE(spec.ok()) << model << " " << field << " " << value;
  const std::string leaf = field.substr(field.rfind('/') + 1);
  EXPECT_NE(spec.error().message.find(leaf), std::string::npos) << spec.error().message;
  EXPECT_NE(spec.error().message.find(value.dump()), std::string::npos) << spec.error().message;
}

TEST(ReadSpecTest, GptOssAsPublished) {
  // The fields of openai/gpt-oss-20b.
  const ModelSpec spec = read(json::parse(R"({
    "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02,
    "intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss",
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
    "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
    "pad_token_id": 199999, "rms_norm_eps": 1e-05, "rope_theta": 150000,
    "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn",
      "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
      "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
    "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": false, "transformers_version": "4.55.0.dev0", "use_cache": true,
    "vocab_size": 201088})"));
  EXPECT_EQ(spec.family, "gpt_oss");
  EXPECT_EQ(spec.num_layers(), 24);
  EXPECT_EQ(spec.layers[0].window, 128);  // even layers slide when layer_types is absent
  EXPECT_EQ(spec.layers[1].window, 0);
  EXPECT_TRUE(spec.layers[23].moe);
  EXPECT_EQ(spec.qkv_size(), (64 + 16) * 64);
  EXPECT_TRUE(spec.attention.sinks && spec.attention.qkv_bias && spec.attention.o_bias);
  EXPECT_FALSE(spec.attention.qk_norm);
  EXPECT_FLOAT_EQ(spec.attention.scale, 0.125f);
  EXPECT_EQ(spec.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(spec.rope.rotary_dim, 64);
  EXPECT_EQ(spec.rope.theta, 150000.0);
  EXPECT_FALSE(spec.rope.truncate);
  EXPECT_NEAR(spec.rope.attention_factor, 1.3465735902799727, 1e-12);  // 0.1 ln 32 + 1
  EXPECT_EQ(spec.max_position, 131072);
  EXPECT_EQ(spec.moe->num_experts, 32);
  EXPECT_EQ(spec.moe->experts_per_token, 4);
  EXPECT_EQ(spec.moe->router, RouterKind::kTopKThenSoftmax);
  EXPECT_EQ(spec.moe->format, WeightFormat::kMxfp4);
  EXPECT_EQ(spec.moe->activation.kind, Activation::kClampedSwiGlu);
  EXPECT_TRUE(spec.moe->router_bias && spec.moe->expert_bias);
  EXPECT_EQ(spec.names.router, "router");
  EXPECT_EQ(spec.names.experts, ExpertLayout::kGptOssMxfp4);
  EXPECT_FLOAT_EQ(spec.norm_eps, 1e-5f);
}

TEST(ReadSpecTest, GptOssGoldens) {
  const ModelSpec plain = read(golden_config("gptoss-bf16"));
  EXPECT_EQ(plain.moe->format, WeightFormat::kFloat);
  EXPECT_EQ(plain.names.experts, ExpertLayout::kGptOssBf16);
  EXPECT_EQ(plain.rope.original_max_position, 512);
  EXPECT_EQ(plain.checkpoint_dtype, DType::kBF16);
  const ModelSpec packed = read(golden_config("gptoss-mxfp4"));  // spelled as by transformers 5
  EXPECT_EQ(packed.rope.theta, 150000.0);
  EXPECT_EQ(packed.rope.original_max_position, 4096);
  EXPECT_EQ(packed.layers[2].window, 20);
}

TEST(ReadSpecTest, Qwen3MoeGoldens) {
  const ModelSpec norm = read(golden_config("qwen3moe-norm"));
  EXPECT_TRUE(norm.moe->normalize_topk);
  EXPECT_EQ(norm.moe->router, RouterKind::kSoftmaxThenTopK);
  EXPECT_TRUE(norm.attention.qk_norm);
  EXPECT_FALSE(norm.attention.qkv_bias);
  EXPECT_EQ(norm.rope.theta, 1e6);
  EXPECT_EQ(norm.rope.scaling, RopeScaling::kNone);
  EXPECT_TRUE(norm.layers[0].moe && !norm.layers[1].moe && norm.layers[2].moe);
  EXPECT_EQ(norm.mlp->intermediate_size, 96);
  const ModelSpec sparse = read(golden_config("qwen3moe-nonorm"));
  EXPECT_FALSE(sparse.moe->normalize_topk);
  EXPECT_TRUE(!sparse.layers[0].moe && sparse.layers[1].moe);
  EXPECT_EQ(sparse.moe->experts_per_token, 3);
  json config = golden_config("qwen3moe-norm");
  config.erase("norm_topk_prob");  // the class default
  EXPECT_FALSE(read(config).moe->normalize_topk);
}

TEST(ReadSpecTest, DenseGoldens) {
  EXPECT_TRUE(read(golden_config("qwen3-tied")).tied_lm_head);
  const ModelSpec qwen = read(golden_config("qwen3-untied"));
  EXPECT_EQ(qwen.attention.head_dim, 128);
  EXPECT_FALSE(qwen.moe.has_value());
  EXPECT_EQ(qwen.mlp->intermediate_size, 160);
  const ModelSpec llama = read(golden_config("llama3-tied"));
  EXPECT_EQ(llama.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(llama.rope.factor, 8.0);
  EXPECT_EQ(llama.rope.high_freq_factor, 4.0);
  EXPECT_EQ(llama.rope.original_max_position, 64);
  EXPECT_FALSE(llama.attention.qk_norm);
  EXPECT_EQ(read(golden_config("llama3-untied")).rope.theta, 500000.0);
}

TEST(ReadSpecTest, Qwen3SlidingWindow) {
  json config = golden_config("qwen3-tied");
  config["use_sliding_window"] = true;
  config["sliding_window"] = 16;
  config["max_window_layers"] = 2;
  const ModelSpec spec = read(config);
  EXPECT_EQ(spec.layers[1].window, 0);
  EXPECT_EQ(spec.layers[2].window, 16);
}

TEST(ReadSpecTest, YarnAttentionFactor) {
  json config = golden_config("qwen3-tied");
  config["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  ModelSpec spec = read(config);
  EXPECT_NEAR(spec.rope.attention_factor, 0.1 * std::log(4.0) + 1.0, 1e-12);
  EXPECT_EQ(spec.max_position, 131072);
  EXPECT_TRUE(spec.rope.truncate);
  config["rope_scaling"]["attention_factor"] = 1.25;
  EXPECT_EQ(read(config).rope.attention_factor, 1.25);
  config["rope_scaling"].erase("attention_factor");
  config["rope_scaling"]["mscale"] = 1.0;
  config["rope_scaling"]["mscale_all_dim"] = 0.5;
  EXPECT_NEAR(read(config).rope.attention_factor,
              (0.1 * std::log(4.0) + 1.0) / (0.05 * std::log(4.0) + 1.0), 1e-12);
}

TEST(ReadSpecTest, RefusesWhatIsNotImplemented) {
  expect_refused("gptoss-bf16", "model_type", "mixtral");
  expect_refused("gptoss-bf16", "hidden_act", "gelu");
  expect_refused("gptoss-bf16", "unheard_of", 3);
  expect_refused("gptoss-bf16", "rope_scaling/rope_type", "longrope");
  expect_refused("gptoss-bf16", "rope_scaling/unheard_of", 0.5);
  expect_refused("gptoss-bf16", "partial_rotary_factor", 0.5);
  expect_refused("gptoss-bf16", "num_experts_per_tok", 99);
  expect_refused("gptoss-bf16", "experts_per_token", 1);
  expect_refused("gptoss-bf16", "num_key_value_heads", 3);
  expect_refused("gptoss-bf16", "hidden_size", -1);
  expect_refused("gptoss-bf16", "vocab_size", "many");
  expect_refused("gptoss-bf16", "torch_dtype", "int8");
  expect_refused("gptoss-mxfp4", "quantization_config/quant_method", "awq");
  expect_refused("gptoss-mxfp4", "quantization_config/unheard_of", 1);
  expect_refused("qwen3moe-norm", "use_sliding_window", true);
  expect_refused("qwen3moe-norm", "quantization_config", {{"quant_method", "fp8"}});
  expect_refused("llama3-tied", "mlp_bias", true);
  EXPECT_FALSE(read_model_spec("").ok());
  EXPECT_FALSE(read_model_spec("[]").ok());
  EXPECT_FALSE(read_model_spec(R"({"model_type": "gpt_oss"})").ok());
  EXPECT_FALSE(read_model_spec(R"({"model_type": 7})").ok());
}

TEST(GenerationConfigTest, ReadsEndTokensAndSampling) {
  const auto gpt_oss = read_generation_config(golden_text("gptoss-mxfp4/generation_config.json"),
                                              golden_text("gptoss-mxfp4/config.json"));
  ASSERT_TRUE(gpt_oss.ok());
  EXPECT_EQ(gpt_oss->eos_token_ids, (std::vector<int32_t>{318, 317, 319}));
  EXPECT_EQ(gpt_oss->do_sample, true);
  EXPECT_FALSE(gpt_oss->temperature.has_value());
  const auto qwen = read_generation_config(golden_text("qwen3-tied/generation_config.json"),
                                           golden_text("qwen3-tied/config.json"));
  ASSERT_TRUE(qwen.ok());
  EXPECT_FLOAT_EQ(*qwen->temperature, 0.6f);
  EXPECT_FLOAT_EQ(*qwen->top_p, 0.95f);
  EXPECT_EQ(qwen->top_k, 20);
  const auto fallback = read_generation_config("", R"({"eos_token_id": 254})");
  ASSERT_TRUE(fallback.ok());
  EXPECT_EQ(fallback->eos_token_ids, std::vector<int32_t>{254});
  EXPECT_FALSE(read_generation_config(R"({"eos_token_id": "x"})", "{}").ok());
}

}  // namespace
}  // namespace medley
