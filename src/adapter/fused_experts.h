#pragma once

#include <map>
#include <vector>

#include "adapter/lora_tensors.h"
#include "adapter/peft_config.h"
#include "adapter/stacked_experts.h"
#include "adapter/target_map.h"
#include "backend/weights.h"

namespace medley {

// Reads LoRA on fused expert parameters (PEFT's target_parameters). Flat lora_A is (E * r, p) with
// the expert outermost in its rows, flat lora_B is (q, r * E) with the expert innermost in its
// columns (huggingface/peft, ParamWrapper). Two parameters of one module nest: "experts" and
// "experts.base_layer", in either order. One of the two may be a single matrix for all experts
// instead: A (r, p) or B (q, r); it is kept once.
class FusedExperts {
 public:
  FusedExperts(const TargetMap& targets, const PeftConfig& config)
      : targets_(targets), config_(config) {}

  // `module` is "...experts". Finds by shapes which parameter the level holds. Refuses one that
  // `stacked` changes too.
  Result<void> add(const std::string& module, const LoraTensors& tensors,
                   const StackedExperts& stacked);
  bool empty() const { return levels_.empty(); }
  // The lora_A that was added for a site; null when there is none.
  const std::string* find(LoraSite site) const;

  // Appends the pairs. Refuses a parameter that target_parameters names but neither the levels nor
  // `stacked` hold.
  Result<void> build(const StackedExperts& stacked,
                     std::map<LoraSite, std::vector<LoraPair>>& pairs) const;

 private:
  struct Level {
    FusedTarget target;
    LoraTensors tensors;
    RankAndScale rank_and_scale;
    int num_a = 0;  // matrices in the tensor: one per expert, or one
    int num_b = 0;
  };

  // Checks the shapes' counts and ranks.
  static Result<Level> level_of(const FusedTarget& target, const LoraTensors& tensors,
                                const RankAndScale& rank_and_scale);
  // Whether lora_A spans the input of W (else its output): one answer for the whole file.
  Result<bool> a_spans_input() const;

  const TargetMap& targets_;
  const PeftConfig& config_;
  std::map<std::string, Level> levels_;  // by parameter
};

}  // namespace medley
