#include "spec/decoder_fields.h"

#include <cmath>

#include <fmt/format.h>

namespace medley {
namespace {

constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxWidth = 1 << 22;
constexpr int64_t kMaxPositions = int64_t{1} << 40;

DType read_dtype(JsonFields& fields) {
  const std::string old_name = fields.string("torch_dtype", "");
  const std::string name = fields.string("dtype", old_name);
  if (name.empty() || name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  if (name != "float32") {
    fields.fail(old_name.empty() ? "dtype" : "torch_dtype",
                "expected bfloat16, float16 or float32");
  }
  return DType::kF32;
}

// Fields of transformers' base config class and of fine-tuning tools.
void ignore_harmless(JsonFields& fields) {
  fields.ignore({"_name_or_path", "name_or_path", "transformers_version", "unsloth_version",
                 "unsloth_fixed", "initializer_range", "use_cache", "attention_dropout",
                 "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
                 "decoder_start_token_id", "return_dict", "output_hidden_states",
                 "output_attentions", "torchscript", "use_bfloat16", "tf_legacy_loss",
                 "chunk_size_feed_forward", "is_decoder", "finetuning_task", "id2label", "label2id",
                 "num_labels", "problem_type", "tokenizer_class", "prefix", "task_specific_params",
                 "_attn_implementation_autoset", "attn_implementation", "_attn_implementation",
                 "pretraining_tp", "max_window_layers",
                 // Generation settings, which older configs carry; generation_config.json rules.
                 "do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
                 "length_penalty", "max_length", "min_length", "num_beams", "num_beam_groups",
                 "num_return_sequences", "diversity_penalty", "early_stopping",
                 "encoder_no_repeat_ngram_size", "no_repeat_ngram_size", "bad_words_ids",
                 "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens",
                 "begin_suppress_tokens", "exponential_decay_length_penalty",
                 "remove_invalid_values", "output_scores", "return_dict_in_generate"});
  fields.require("is_encoder_decoder", {"false"});
  fields.require("add_cross_attention", {"false"});
  fields.require("cross_attention_hidden_size", {});
  fields.require("tie_encoder_decoder", {"false"});
  fields.require("pruned_heads", {"{}"});
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void read_yarn(JsonFields& rope, ModelSpec& spec) {
  RopeSpec& out = spec.rope;
  out.scaling = RopeScaling::kYarn;
  out.factor = rope.number("factor");
  out.original_max_position =
      rope.integer("original_max_position_embeddings", spec.max_position, 1, kMaxPositions);
  out.beta_fast = rope.number("beta_fast", 32.0);
  out.beta_slow = rope.number("beta_slow", 1.0);
  out.truncate = rope.boolean("truncate", true);
  const double mscale = rope.number("mscale", 0.0);
  const double mscale_all_dim = rope.number("mscale_all_dim", 0.0);
  out.attention_factor = yarn_mscale(out.factor, 1.0);
  if (mscale != 0.0 && mscale_all_dim != 0.0) {
    out.attention_factor =
        yarn_mscale(out.factor, mscale) / yarn_mscale(out.factor, mscale_all_dim);
  }
  out.attention_factor = rope.number("attention_factor", out.attention_factor);
  const double reach = out.factor * static_cast<double>(out.original_max_position);
  if (reach < static_cast<double>(kMaxPositions)) {
    spec.max_position = std::max(spec.max_position, static_cast<int64_t>(reach));
  }
}

void read_scaling(JsonFields& rope, ModelSpec& spec) {
  RopeSpec& out = spec.rope;
  const std::string type = rope.string("rope_type", rope.string("type", "default"));
  rope.ignore({"type"});
  rope.require("partial_rotary_factor", {"1"}, "a partial rotary embedding is not supported");
  if (type == "default") return;
  if (type == "linear") {
    out.scaling = RopeScaling::kLinear;
    out.factor = rope.number("factor");
  } else if (type == "yarn") {
    read_yarn(rope, spec);
  } else if (type == "llama3") {
    out.scaling = RopeScaling::kLlama3;
    out.factor = rope.number("factor");
    out.low_freq_factor = rope.number("low_freq_factor");
    out.high_freq_factor = rope.number("high_freq_factor");
    out.original_max_position =
        rope.integer("original_max_position_embeddings", std::nullopt, 1, kMaxPositions);
    if (out.high_freq_factor <= out.low_freq_factor) {
      rope.fail("high_freq_factor", "expected more than low_freq_factor",
                ErrorCode::kInvalidArgument);
    }
  } else {
    rope.fail(rope.has("rope_type") ? "rope_type" : "type",
              "expected default, linear, yarn or llama3");
  }
  if (!(out.factor > 0.0)) {
    rope.fail("factor", "expected a positive number", ErrorCode::kInvalidArgument);
  }
}

}  // namespace

ModelSpec read_decoder(JsonFields& fields, const DecoderDefaults& defaults) {
  ignore_harmless(fields);
  fields.require("hidden_act", {"\"silu\""}, "only silu is supported");
  ModelSpec spec;
  spec.vocab_size = fields.integer("vocab_size", std::nullopt, 1, 1 << 28);
  spec.hidden_size = static_cast<int>(fields.integer("hidden_size", std::nullopt, 1, kMaxWidth));
  spec.layers.resize(fields.integer("num_hidden_layers", std::nullopt, 1, kMaxLayers));
  spec.max_position = fields.integer("max_position_embeddings", std::nullopt, 1, kMaxPositions);
  spec.norm_eps = static_cast<float>(fields.number("rms_norm_eps", defaults.norm_eps));
  spec.tied_lm_head = fields.boolean("tie_word_embeddings", false);
  spec.checkpoint_dtype = read_dtype(fields);

  AttentionSpec& attention = spec.attention;
  attention.num_heads =
      static_cast<int>(fields.integer("num_attention_heads", std::nullopt, 1, 1 << 16));
  attention.num_kv_heads = static_cast<int>(
      fields.integer("num_key_value_heads", attention.num_heads, 1, attention.num_heads));
  const int even_share = std::max(1, spec.hidden_size / attention.num_heads);
  attention.head_dim = static_cast<int>(fields.integer(
      "head_dim", defaults.head_dim != 0 ? defaults.head_dim : even_share, 1, 1 << 16));
  if (attention.num_heads % attention.num_kv_heads != 0) {
    fields.fail("num_key_value_heads", "expected a divisor of num_attention_heads",
                ErrorCode::kInvalidArgument);
  }
  if (attention.head_dim % 2 != 0) {
    fields.fail("head_dim", "expected an even number", ErrorCode::kInvalidArgument);
  }
  attention.scale = static_cast<float>(1.0 / std::sqrt(attention.head_dim));
  attention.qkv_bias = fields.boolean("attention_bias", defaults.attention_bias);
  attention.o_bias = attention.qkv_bias;
  return spec;
}

int read_aliased_size(JsonFields& fields, std::string_view name, std::string_view alias, int max) {
  if (!fields.has(alias)) {
    return static_cast<int>(fields.integer(name, std::nullopt, 1, max));
  }
  const int64_t value = fields.integer(alias, std::nullopt, 1, max);
  if (fields.integer(name, value, 1, max) != value) {
    fields.fail(name, fmt::format("{} says {}", alias, value), ErrorCode::kInvalidArgument);
  }
  return static_cast<int>(value);
}

void read_rope(JsonFields& fields, const RopeSpec& defaults, ModelSpec& spec) {
  spec.rope = defaults;
  spec.rope.rotary_dim = spec.attention.head_dim;
  fields.require("partial_rotary_factor", {"1"}, "a partial rotary embedding is not supported");
  const bool new_spelling = fields.has("rope_parameters");
  const bool old_scaling = fields.has("rope_scaling");
  spec.rope.theta = fields.number("rope_theta", defaults.theta);
  if (new_spelling && old_scaling) {
    fields.fail("rope_scaling", "rope_parameters is there too; only one of them may be",
                ErrorCode::kInvalidArgument);
  }
  if (new_spelling || old_scaling) {
    JsonFields rope = fields.object(new_spelling ? "rope_parameters" : "rope_scaling");
    spec.rope = RopeSpec{.theta = spec.rope.theta, .rotary_dim = spec.rope.rotary_dim};
    if (rope.has("rope_theta")) {
      spec.rope.theta = rope.number("rope_theta");
      if (fields.has("rope_theta") && fields.number("rope_theta") != spec.rope.theta) {
        fields.fail("rope_theta", fmt::format("rope_parameters says {}", spec.rope.theta),
                    ErrorCode::kInvalidArgument);
      }
    }
    read_scaling(rope, spec);
  }
  if (!(spec.rope.theta > 1.0)) {
    fields.fail("rope_theta", "expected more than 1", ErrorCode::kInvalidArgument);
  }
}

}  // namespace medley
