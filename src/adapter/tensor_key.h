#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace medley {

enum class LoraTensor : uint8_t {
  kA,
  kB,
  kEmbeddingA,
  kEmbeddingB,
  kBiasB,
  kMagnitude,  // DoRA
  kBase,       // no LoRA tensor: a weight of the base model, or unknown
};

// A tensor's name in an adapter file, taken apart:
// "base_model.model." <module> (".base_layer")* ".lora_A" [".default"] ".weight".
struct TensorKey {
  std::string module;  // "model.layers.3.self_attn.q_proj"
  int level = 0;       // how many ".base_layer" follow it
  LoraTensor tensor = LoraTensor::kA;
};

// Any name can be taken apart; what does not look like LoRA is kBase.
TensorKey parse_tensor_key(std::string_view name);

}  // namespace medley
