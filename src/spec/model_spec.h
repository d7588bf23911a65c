#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace medley {

enum class RopeScaling : uint8_t { kNone, kLinear, kYarn, kLlama3 };

// Rotary embedding over the first `rotary_dim` of each head; pairs are (i, i + rotary_dim / 2), the
// Hugging Face order.
struct RopeSpec {
  double theta = 10000.0;
  int rotary_dim = 0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int64_t original_max_position = 0;
  double beta_fast = 32.0;  // YaRN
  double beta_slow = 1.0;
  bool truncate = true;
  double attention_factor = 1.0;  // multiplies cos and sin
  double low_freq_factor = 1.0;   // Llama 3
  double high_freq_factor = 1.0;
};

// Grouped-query attention; q, k and v are one fused projection, outputs in the order q, k, v.
struct AttentionSpec {
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float scale = 0.0f;  // on q . k
  bool qkv_bias = false;
  bool o_bias = false;
  bool qk_norm = false;  // RMS norm over head_dim of q and k, before rope
  bool sinks = false;    // one learned logit per head joins the softmax's denominator
};

enum class Activation : uint8_t {
  kSwiGlu,         // silu(gate) * up
  kClampedSwiGlu,  // GPT-OSS: g = min(gate, limit), u = clamp(up, +-limit): (u + 1) * g *
                   // sigmoid(alpha * g)
};

struct ActivationSpec {
  Activation kind = Activation::kSwiGlu;
  float limit = 7.0f;
  float alpha = 1.702f;
};

enum class RouterKind : uint8_t {
  kTopKThenSoftmax,  // GPT-OSS: softmax over the chosen logits
  kSoftmaxThenTopK,  // Qwen3-MoE: softmax over all, then top-k, then normalised if normalize_topk
};

enum class WeightFormat : uint8_t {
  kFloat,  // float32, bfloat16 or float16
  kMxfp4,  // OCP MX v1.0: E2M1 pairs, low nibble first, one E8M0 scale per 32 along the input
           // dimension
};

struct MoeSpec {
  int num_experts = 0;
  int experts_per_token = 0;
  int intermediate_size = 0;
  RouterKind router = RouterKind::kSoftmaxThenTopK;
  bool normalize_topk = false;
  bool router_bias = false;
  bool expert_bias = false;
  ActivationSpec activation;
  WeightFormat format = WeightFormat::kFloat;
};

struct MlpSpec {
  int intermediate_size = 0;
  ActivationSpec activation;
};

struct LayerSpec {
  int window = 0;  // sliding window in tokens, the token itself counted; 0 = full attention
  bool rope = true;
  bool moe = false;  // else a dense MLP
};

// How a checkpoint spells its tensors. "{l}" is the layer, "{e}" the expert. Linear weights are
// (out, in).
enum class ExpertLayout : uint8_t {
  kPerExpert,    // ...experts.{e}.gate_proj.weight (I, H), up_proj, down_proj (H, I)
  kGptOssBf16,   // experts.gate_up_proj (E, H, 2I), gate and up interleaved in 2I; down_proj (E, I,
                 // H)
  kGptOssMxfp4,  // experts.gate_up_proj_blocks (E, 2I, H/32, 16), _scales (E, 2I, H/32);
                 // down_proj_blocks (E, H, I/32, 16)
};

struct WeightNames {
  std::string embed = "model.embed_tokens.weight";
  std::string final_norm = "model.norm.weight";
  std::string lm_head = "lm_head.weight";
  std::string attention = "model.layers.{l}.self_attn.";
  std::string mlp = "model.layers.{l}.mlp.";
  std::string input_norm = "model.layers.{l}.input_layernorm.weight";
  std::string post_attention_norm = "model.layers.{l}.post_attention_layernorm.weight";
  std::string router = "gate";  // below mlp
  ExpertLayout experts = ExpertLayout::kPerExpert;
};

// Everything that differs between models. Pure data; read from config.json by read_model_spec.
struct ModelSpec {
  std::string family;  // "gpt_oss", "qwen3_moe", ... (config.json's model_type)
  int64_t vocab_size = 0;
  int hidden_size = 0;
  int64_t max_position = 0;
  float norm_eps = 1e-6f;
  bool tied_lm_head = false;
  DType checkpoint_dtype = DType::kBF16;
  AttentionSpec attention;
  RopeSpec rope;
  std::optional<MoeSpec> moe;
  std::optional<MlpSpec> mlp;
  std::vector<LayerSpec> layers;
  WeightNames names;

  int num_layers() const { return static_cast<int>(layers.size()); }
  int qkv_size() const {
    return (attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim;
  }
};

}  // namespace medley
