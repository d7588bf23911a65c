#pragma once

#include <map>
#include <string>
#include <vector>

#include "adapter/lora_tensors.h"
#include "adapter/peft_config.h"
#include "adapter/target_map.h"
#include "backend/weights.h"

namespace medley {

// Reads LoRA on all experts' projections under a name without an expert's number, as SGLang and
// NVIDIA's Megatron-Bridge write and read it ("shared outer" LoRA):
//
//   ...experts.NAME.lora_A   (E, r, in), or one for all experts: (1, r, in) or (r, in)
//   ...experts.NAME.lora_B   (E, out, r), or one for all experts: (1, out, r) or (out, r)
//
// NAME is gate_proj, up_proj, down_proj, their other names w1, w3, w2, or gate_up_proj (rows gate,
// then up). One of the two may be given for single experts instead (...experts.3.NAME.lora_B), then
// for all of them. What is one for all is kept once.
class StackedExperts {
 public:
  StackedExperts(const TargetMap& targets, const PeftConfig& config)
      : targets_(targets), config_(config) {}

  // Takes the tensors of this form out of `modules`.
  Result<void> take(LoraTensorMap& modules);
  bool empty() const { return projections_.empty(); }
  // A tensor that was taken for one of these rows of a site; null when there is none.
  const std::string* find(LoraSite site, int64_t row_begin, int64_t row_end) const;

  // Appends each projection's pair to its site's.
  void build(std::map<LoraSite, std::vector<LoraPair>>& pairs) const;

 private:
  struct Side {
    std::vector<MatrixView> matrices;  // one, or one per expert
    std::string name;                  // of the (first) tensor
  };
  struct Projection {
    const StackedTarget* target = nullptr;
    RankAndScale rank_and_scale;
    Side a, b;
  };

  Result<void> take_projection(const StackedTarget& target, LoraTensorMap& modules);
  Result<Side> take_side(const StackedTarget& target, const LoraTensors& stacked, bool is_a,
                         int rank, LoraTensorMap& modules) const;
  Result<bool> is_targeted(const StackedTarget& target) const;

  const TargetMap& targets_;
  const PeftConfig& config_;
  std::vector<Projection> projections_;
};

}  // namespace medley
