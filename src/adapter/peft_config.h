#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "adapter/pattern.h"
#include "base/error.h"
#include "spec/lora_site.h"

namespace medley {

struct RankAndScale {
  int rank = 0;
  float scale = 1.0f;  // lora_alpha / rank, or lora_alpha / sqrt(rank) with use_rslora
};

// adapter_config.json as PEFT writes it (huggingface/peft, LoraConfig). Every key is implemented
// here, known to be harmless, or refused unless at its neutral value.
class PeftConfig {
 public:
  // `what` names the file in errors.
  static Result<PeftConfig> parse(std::string_view json, std::string what);

  // Whether PEFT would adapt a module ("model.layers.3.self_attn.q_proj"). kMaybe: PEFT's versions
  // differ, or it depends on how the module was held in training.
  enum class Targeted : uint8_t { kNo, kMaybe, kYes };
  Result<Targeted> targets_module(std::string_view module, LoraModule kind) const;
  // Whether target_parameters names a parameter ("model.layers.3.mlp.experts.down_proj").
  bool targets_parameter(std::string_view parameter) const;

  // Of a module, or of a parameter that target_parameters names; by the first pattern that matches.
  Result<RankAndScale> rank_and_scale(std::string_view key) const;

  // Which side of a fused three-dimensional parameter W[E, d1, d2] lora_A spans: before 0.19 always
  // d1; since then d2, unless the module says that it is transposed. Nothing when the version that
  // wrote the file is missing or between the two.
  std::optional<bool> fused_a_spans_first() const;

 private:
  using Patterns = std::vector<std::pair<Pattern, double>>;

  bool in_list(const std::vector<std::string>& list, std::string_view module) const;
  Result<Targeted> in_layers(std::string_view module) const;

  int rank_ = 0;
  double alpha_ = 0.0;
  bool use_rslora_ = false;
  Patterns rank_pattern_, alpha_pattern_;
  bool all_linear_ = false;
  std::optional<Pattern> target_expression_, exclude_expression_;
  std::vector<std::string> target_modules_, exclude_modules_, target_parameters_;
  std::vector<int64_t> layers_;  // layers_to_transform; empty = all
  std::vector<Pattern> layers_patterns_;
  std::string peft_version_;
};

}  // namespace medley
