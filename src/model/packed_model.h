#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "spec/model_spec.h"
#include "weights/model_weights.h"

namespace medley {

struct PackedLayer {
  std::unique_ptr<PackedWeight> input_norm, post_attention_norm;
  std::unique_ptr<PackedWeight> q_norm, k_norm, sinks;  // null where the model has none
  std::unique_ptr<PackedWeight> qkv, o;
  std::unique_ptr<PackedWeight> router;         // MoE layers
  std::unique_ptr<PackedWeight> gate_up, down;  // the experts', or the dense MLP's
};

// All weights of a model as a backend keeps them.
struct PackedModel {
  std::unique_ptr<PackedWeight> embedding, final_norm, lm_head;
  std::vector<PackedLayer> layers;
  size_t num_bytes = 0;
};

// In bytes of the checkpoint.
struct PackProgress {
  size_t done_bytes = 0;
  size_t total_bytes = 0;
};
using OnPackProgress = std::function<void(const PackProgress&)>;

// Packs weight after weight, calls `on_progress` (may be empty) after each, and logs where the time
// went. An error of the backend is passed on with the weight named.
Result<PackedModel> pack_model(const ModelSpec& spec, const ModelWeights& weights, Backend& backend,
                               const OnPackProgress& on_progress);

}  // namespace medley
