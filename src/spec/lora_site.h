#pragma once

#include <cstdint>
#include <string>

namespace medley {

// The fused modules that a LoRA adapter may change. A module's canonical output order is part of
// its meaning: every B is delivered in it, whatever the adapter file's own order.
enum class LoraModule : uint8_t {
  kQkv,  // rows q, k, v
  kO,
  kRouter,
  kExpertGateUp,  // per expert: rows gate 0..I-1, then up 0..I-1
  kExpertDown,    // per expert
  kMlpGateUp,     // rows gate, then up
  kMlpDown,
  kLmHead,  // layer 0
  kEmbed,   // layer 0; A is (r, V), B is (H, r)
};
inline constexpr int kNumLoraModules = 9;

const char* to_string(LoraModule module);

struct LoraSite {
  LoraModule module = LoraModule::kQkv;
  int layer = 0;
  friend auto operator<=>(const LoraSite&, const LoraSite&) = default;
};

}  // namespace medley
