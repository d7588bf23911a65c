#pragma once

#include <string>

#include "spec/model_spec.h"
#include "weights/model_weights.h"
#include "weights/tensor_reader.h"

namespace medley {

// Reads one layer's experts, in any ExpertLayout, below `prefix` ("model.layers.3.mlp.").
void read_experts(TensorReader& reader, const ModelSpec& spec, const std::string& prefix,
                  LayerWeights& layer);

}  // namespace medley
