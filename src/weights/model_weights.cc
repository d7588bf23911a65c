#include "weights/model_weights.h"

#include <cstring>
#include <string>

#include "weights/expert_weights.h"
#include "weights/tensor_reader.h"

namespace medley {
namespace {

std::string at_layer(std::string name, int layer) {
  const size_t mark = name.find("{l}");
  return name.replace(mark, 3, std::to_string(layer));
}

void read_attention(TensorReader& reader, const ModelSpec& spec, const std::string& prefix,
                    LayerWeights& layer) {
  const AttentionSpec& attention = spec.attention;
  const int64_t q_size = int64_t{attention.num_heads} * attention.head_dim;
  const int64_t kv_size = int64_t{attention.num_kv_heads} * attention.head_dim;
  const std::pair<const char*, int64_t> parts[] = {
      {"q_proj", q_size}, {"k_proj", kv_size}, {"v_proj", kv_size}};
  for (const auto& [name, size] : parts) {
    layer.qkv.parts.push_back(reader.matrix(prefix + name + ".weight", size, spec.hidden_size));
    if (attention.qkv_bias) {
      layer.qkv.biases.push_back(reader.vector(prefix + name + ".bias", size));
    }
  }
  layer.o.parts.push_back(reader.matrix(prefix + "o_proj.weight", spec.hidden_size, q_size));
  if (attention.o_bias) {
    layer.o.biases.push_back(reader.vector(prefix + "o_proj.bias", spec.hidden_size));
  }
  if (attention.qk_norm) {
    layer.q_norm = reader.vector(prefix + "q_norm.weight", attention.head_dim);
    layer.k_norm = reader.vector(prefix + "k_norm.weight", attention.head_dim);
  }
  if (attention.sinks) layer.sinks = reader.vector(prefix + "sinks", attention.num_heads);
  // A buffer that older transformers saved; it follows from the config.
  reader.ignore(prefix + "rotary_emb.inv_freq");
}

void read_moe(TensorReader& reader, const ModelSpec& spec, const std::string& prefix,
              LayerWeights& layer) {
  const int64_t experts = spec.moe->num_experts;
  const std::string router = prefix + spec.names.router;
  layer.router.parts.push_back(reader.matrix(router + ".weight", experts, spec.hidden_size));
  if (spec.moe->router_bias) {
    layer.router.biases.push_back(reader.vector(router + ".bias", experts));
  }
  read_experts(reader, spec, prefix, layer);
}

void read_mlp(TensorReader& reader, const ModelSpec& spec, const std::string& prefix,
              LayerWeights& layer) {
  const int64_t inner = spec.mlp->intermediate_size;
  layer.mlp_gate_up.gate_up = true;
  for (const char* name : {"gate_proj.weight", "up_proj.weight"}) {
    layer.mlp_gate_up.parts.push_back(reader.matrix(prefix + name, inner, spec.hidden_size));
  }
  layer.mlp_down.parts.push_back(
      reader.matrix(prefix + "down_proj.weight", spec.hidden_size, inner));
}

MatrixView read_lm_head(TensorReader& reader, const ModelSpec& spec, const MatrixView& embedding) {
  const std::string& name = spec.names.lm_head;
  if (!spec.tied_lm_head) return reader.matrix(name, spec.vocab_size, spec.hidden_size);
  if (!reader.has(name)) return embedding;
  const MatrixView head = reader.matrix(name, spec.vocab_size, spec.hidden_size);
  const size_t num_bytes = head.rows * head.cols * size_of(head.dtype);
  const bool readable = head.data != nullptr && embedding.data != nullptr;
  if (head.dtype != embedding.dtype ||
      (readable && std::memcmp(head.data, embedding.data, num_bytes) != 0)) {
    reader.fail(name, "differs from the embedding, though the config says that they are tied");
  }
  return embedding;
}

Result<ModelWeights> read_all(TensorReader& reader, const ModelSpec& spec) {
  const WeightNames& names = spec.names;
  ModelWeights weights;
  weights.embedding = reader.matrix(names.embed, spec.vocab_size, spec.hidden_size);
  weights.final_norm = reader.vector(names.final_norm, spec.hidden_size);
  weights.lm_head.parts.push_back(read_lm_head(reader, spec, weights.embedding));
  for (int l = 0; l < spec.num_layers() && reader.ok(); ++l) {
    LayerWeights layer;
    layer.input_norm = reader.vector(at_layer(names.input_norm, l), spec.hidden_size);
    layer.post_attention_norm =
        reader.vector(at_layer(names.post_attention_norm, l), spec.hidden_size);
    read_attention(reader, spec, at_layer(names.attention, l), layer);
    if (spec.layers[l].moe) {
      read_moe(reader, spec, at_layer(names.mlp, l), layer);
    } else {
      read_mlp(reader, spec, at_layer(names.mlp, l), layer);
    }
    weights.layers.push_back(std::move(layer));
  }
  MEDLEY_TRY(reader.finish());
  return weights;
}

}  // namespace

Result<ModelWeights> read_model_weights(const ModelSpec& spec, const TensorMap& tensors) {
  TensorReader reader(tensors);
  return read_all(reader, spec);
}

TensorMap wanted_tensors(const ModelSpec& spec) {
  TensorMap wanted;
  TensorReader reader(wanted, spec.checkpoint_dtype);
  MEDLEY_CHECK(read_all(reader, spec).ok());
  return wanted;
}

Result<ModelWeights> read_model_weights(const ModelSpec& spec, const Checkpoint& checkpoint) {
  return read_model_weights(spec, checkpoint.tensors());
}

}  // namespace medley
