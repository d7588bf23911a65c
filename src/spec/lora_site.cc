#include "spec/lora_site.h"

#include "base/check.h"

namespace medley {

const char* to_string(LoraModule module) {
  switch (module) {
    case LoraModule::kQkv:
      return "qkv";
    case LoraModule::kO:
      return "o";
    case LoraModule::kRouter:
      return "router";
    case LoraModule::kExpertGateUp:
      return "expert_gate_up";
    case LoraModule::kExpertDown:
      return "expert_down";
    case LoraModule::kMlpGateUp:
      return "mlp_gate_up";
    case LoraModule::kMlpDown:
      return "mlp_down";
    case LoraModule::kLmHead:
      return "lm_head";
    case LoraModule::kEmbed:
      return "embed";
  }
  MEDLEY_CHECK(false, "unknown LoraModule");
}

}  // namespace medley
