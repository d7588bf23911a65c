#pragma once

#include <optional>
#include <vector>

#include "backend/weights.h"
#include "base/error.h"
#include "spec/model_spec.h"
#include "weights/checkpoint.h"

namespace medley {

struct LayerWeights {
  VectorView input_norm;
  VectorView post_attention_norm;
  LinearWeights qkv;  // parts q, k, v
  LinearWeights o;
  std::optional<VectorView> q_norm, k_norm;
  std::optional<VectorView> sinks;
  // MoE layers
  LinearWeights router;
  ExpertGateUpWeights expert_gate_up;
  ExpertDownWeights expert_down;
  // dense layers
  LinearWeights mlp_gate_up;  // parts gate, up
  LinearWeights mlp_down;
};

// Views into the checkpoint's mapped files, which must outlive it.
struct ModelWeights {
  MatrixView embedding;  // (V, H)
  VectorView final_norm;
  LinearWeights lm_head;  // the embedding again when tied
  std::vector<LayerWeights> layers;
};

// Strict: every tensor of the checkpoint is used and every needed one is there with the right shape
// and dtype, else the error names the tensor, what was expected and what was found.
Result<ModelWeights> read_model_weights(const ModelSpec& spec, const Checkpoint& checkpoint);
// The same from a list of tensors; data pointers are not followed and may be null.
Result<ModelWeights> read_model_weights(const ModelSpec& spec, const TensorMap& tensors);
// The tensors of a checkpoint of this model, without data: those that read_model_weights needs.
TensorMap wanted_tensors(const ModelSpec& spec);

}  // namespace medley
