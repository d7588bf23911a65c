#include "adapter/tensor_key.h"

#include <utility>

namespace medley {
namespace {

constexpr std::pair<std::string_view, LoraTensor> kParts[] = {
    {"lora_A", LoraTensor::kA},
    {"lora_B", LoraTensor::kB},
    {"lora_embedding_A", LoraTensor::kEmbeddingA},
    {"lora_embedding_B", LoraTensor::kEmbeddingB},
    {"lora_magnitude_vector", LoraTensor::kMagnitude},
};

bool remove_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

}  // namespace

TensorKey parse_tensor_key(std::string_view name) {
  constexpr std::string_view kPrefix = "base_model.model.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  TensorKey key;
  key.tensor = LoraTensor::kBase;

  std::string_view rest = name;
  const bool bias = remove_suffix(rest, ".bias");
  if (!bias) remove_suffix(rest, ".weight");
  std::string_view module = rest;
  remove_suffix(module, ".default");
  for (const auto& [part, tensor] : kParts) {
    const size_t dot = module.rfind('.');
    if (dot == std::string_view::npos || module.substr(dot + 1) != part) continue;
    if (bias && tensor != LoraTensor::kB) continue;
    key.tensor = bias ? LoraTensor::kBiasB : tensor;
    rest = module.substr(0, dot);
    break;
  }
  while (remove_suffix(rest, ".base_layer")) ++key.level;
  key.module = std::string(rest);
  return key;
}

}  // namespace medley
