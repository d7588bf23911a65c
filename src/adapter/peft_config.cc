#include "adapter/peft_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "spec/json_fields.h"

namespace medley {
namespace {

constexpr int kMaxRank = 1 << 16;
constexpr std::string_view kChangesBase = "it changes the base model's weights as well";
constexpr std::string_view kDora = "DoRA is not supported";
constexpr std::string_view kVariant = "this variant of LoRA is not supported";

void read_neutral(JsonFields& fields) {
  fields.require("peft_type", {"\"LORA\""}, "only LoRA adapters are supported");
  fields.require("task_type", {"\"CAUSAL_LM\""}, "only causal language models are supported");
  fields.require("bias", {"\"none\""}, "trained biases are not supported");
  fields.require("lora_bias", {"false"}, "a bias on lora_B is not supported");
  fields.require("fan_in_fan_out", {"false"});
  fields.require("modules_to_save", {"[]"}, "fully trained modules are not supported");
  fields.require("trainable_token_indices", {"[]", "{}"}, "trained tokens are not supported");
  fields.require("layer_replication", {"[]"}, "replicated layers are not supported");
  fields.require("ensure_weight_tying", {"false"}, "tied adapters are not supported");
  fields.require("use_dora", {"false"}, kDora);
  fields.require("use_qalora", {"false"}, kVariant);
  fields.require("use_bdlora", {"false"}, kVariant);
  fields.require("alora_invocation_tokens", {"[]"}, "activated LoRA is not supported");
  for (const char* name : {"arrow_config", "kasa_config", "velora_config", "monteclora_config"}) {
    fields.require(name, {}, kVariant);
  }
  // The other initialisations start from changed base weights, which the files do not hold.
  fields.require("init_lora_weights",
                 {"true", "false", "\"gaussian\"", "\"eva\"", "\"orthogonal\"", "\"mica\""},
                 kChangesBase);
  fields.require("enable_lora", {}, "an old form of target selection");
  // Training, bookkeeping, and options of the settings above.
  fields.ignore({"auto_mapping", "base_model_name_or_path", "revision", "inference_mode",
                 "lora_dropout", "megatron_config", "megatron_core", "loftq_config", "eva_config",
                 "corda_config", "lora_ga_config", "qalora_group_size", "runtime_config",
                 "merge_weights", "_unsloth_version", "unsloth_version", "unsloth_fixed"});
}

// (first, last) number of the path's segments; the layer is the first.
std::optional<std::pair<int64_t, int64_t>> numbers_of(std::string_view module) {
  std::optional<std::pair<int64_t, int64_t>> found;
  size_t begin = 0;
  while (begin < module.size()) {
    const size_t end = std::min(module.find('.', begin), module.size());
    const std::string_view segment = module.substr(begin, end - begin);
    const bool digits =
        !segment.empty() && segment.size() < 10 &&
        std::all_of(
            segment.begin(), segment.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    // Something must follow the number, as in "layers.3.".
    if (digits && end < module.size()) {
      const int64_t number = std::stoll(std::string(segment));
      if (!found) found.emplace(number, number);
      found->second = number;
    }
    begin = end + 1;
  }
  return found;
}

}  // namespace

Result<PeftConfig> PeftConfig::parse(std::string_view json, std::string what) {
  MEDLEY_TRY_ASSIGN(JsonFields fields, JsonFields::parse(json, std::move(what)));
  read_neutral(fields);
  PeftConfig config;
  config.rank_ = static_cast<int>(fields.integer("r", 8, 1, kMaxRank));
  config.alpha_ = fields.number("lora_alpha", 8.0);
  config.use_rslora_ = fields.boolean("use_rslora", false);
  config.peft_version_ = fields.string("peft_version", "");
  config.target_parameters_ = fields.strings("target_parameters");
  config.layers_ = fields.integers("layers_to_transform");

  const auto compile = [&](std::string_view field, std::string_view text) {
    Result<Pattern> pattern = Pattern::compile(text);
    if (!pattern.ok()) fields.fail(field, pattern.error().message, ErrorCode::kInvalidArgument);
    return pattern.ok() ? *pattern : Pattern();
  };
  for (const std::string_view name : {"rank_pattern", "alpha_pattern"}) {
    Patterns& patterns = name == "rank_pattern" ? config.rank_pattern_ : config.alpha_pattern_;
    for (const auto& [text, value] : fields.numbers(name)) {
      if (name == "rank_pattern" &&
          (value != std::floor(value) || value < 1.0 || value > kMaxRank)) {
        fields.fail(name, "expected ranks", ErrorCode::kInvalidArgument);
      }
      patterns.emplace_back(compile(name, text), value);
    }
  }
  for (const std::string& text : fields.strings("layers_pattern")) {
    config.layers_patterns_.push_back(compile("layers_pattern", text));
  }
  if (fields.is_string("target_modules")) {
    std::string text = fields.string("target_modules");
    std::string lower = text;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    if (lower == "all-linear") {
      config.all_linear_ = true;
    } else {
      config.target_expression_ = compile("target_modules", text);
    }
  } else {
    config.target_modules_ = fields.strings("target_modules");
  }
  if (fields.is_string("exclude_modules")) {
    config.exclude_expression_ = compile("exclude_modules", fields.string("exclude_modules"));
  } else {
    config.exclude_modules_ = fields.strings("exclude_modules");
  }
  if (!config.all_linear_ && !config.target_expression_ && config.target_modules_.empty() &&
      config.target_parameters_.empty()) {
    fields.fail("target_modules", "neither target_modules nor target_parameters names anything",
                ErrorCode::kInvalidArgument);
  }
  MEDLEY_TRY(fields.finish());
  return config;
}

bool PeftConfig::in_list(const std::vector<std::string>& list, std::string_view module) const {
  return std::any_of(list.begin(), list.end(), [&](const std::string& name) {
    return module.ends_with(name) &&
           (module.size() == name.size() || module[module.size() - name.size() - 1] == '.');
  });
}

Result<PeftConfig::Targeted> PeftConfig::in_layers(std::string_view module) const {
  const auto has = [&](int64_t layer) {
    return std::find(layers_.begin(), layers_.end(), layer) != layers_.end();
  };
  const auto numbers = numbers_of(module);
  if (!numbers) return Targeted::kNo;
  if (!layers_patterns_.empty()) {
    const size_t dot = module.find("." + std::to_string(numbers->first) + ".");
    bool any = false;
    for (const Pattern& pattern : layers_patterns_) {
      MEDLEY_TRY_ASSIGN(const bool matches, pattern.matches_end(module.substr(0, dot)));
      any |= matches;
    }
    return any && has(numbers->first) ? Targeted::kYes : Targeted::kNo;
  }
  // Older versions took an expert's number for the layer's.
  const bool first = has(numbers->first);
  const bool last = has(numbers->second);
  if (first != last) return Targeted::kMaybe;
  return first ? Targeted::kYes : Targeted::kNo;
}

Result<PeftConfig::Targeted> PeftConfig::targets_module(std::string_view module,
                                                        LoraModule kind) const {
  if (exclude_expression_) {
    MEDLEY_TRY_ASSIGN(const bool excluded, exclude_expression_->matches(module));
    if (excluded) return Targeted::kNo;
  } else if (in_list(exclude_modules_, module)) {
    return Targeted::kNo;
  }
  if (all_linear_) {
    switch (kind) {
      case LoraModule::kEmbed:
      case LoraModule::kLmHead:
        return Targeted::kNo;
      case LoraModule::kRouter:
      case LoraModule::kExpertGateUp:
      case LoraModule::kExpertDown:
        return Targeted::kMaybe;  // linear modules in transformers 4, parameters in 5
      default:
        return Targeted::kYes;
    }
  }
  if (target_expression_) {
    MEDLEY_TRY_ASSIGN(const bool matches, target_expression_->matches(module));
    return matches ? Targeted::kYes : Targeted::kNo;
  }
  if (!in_list(target_modules_, module)) return Targeted::kNo;
  // A module that is named in full is adapted whatever its layer.
  const bool in_full =
      std::find(target_modules_.begin(), target_modules_.end(), module) != target_modules_.end();
  return layers_.empty() || in_full ? Result<Targeted>(Targeted::kYes) : in_layers(module);
}

bool PeftConfig::targets_parameter(std::string_view parameter) const {
  return in_list(target_parameters_, parameter);
}

Result<RankAndScale> PeftConfig::rank_and_scale(std::string_view key) const {
  const auto look_up = [&](const Patterns& patterns, double fallback) -> Result<double> {
    for (const auto& [pattern, value] : patterns) {
      MEDLEY_TRY_ASSIGN(const bool matches, pattern.matches_end(key));
      if (matches) return value;
    }
    return fallback;
  };
  MEDLEY_TRY_ASSIGN(const double rank, look_up(rank_pattern_, rank_));
  MEDLEY_TRY_ASSIGN(const double alpha, look_up(alpha_pattern_, alpha_));
  return RankAndScale{.rank = static_cast<int>(rank),
                      .scale = static_cast<float>(alpha / (use_rslora_ ? std::sqrt(rank) : rank))};
}

std::optional<bool> PeftConfig::fused_a_spans_first() const {
  // "0.18.1", "0.19.0.dev0", "0.18.2.dev0@<commit>"
  int major = 0;
  int minor = 0;
  if (std::sscanf(peft_version_.c_str(), "%d.%d.", &major, &minor) != 2) return std::nullopt;
  const bool old = major == 0 && minor < 19;
  if (old && minor == 18 && peft_version_.find("dev") != std::string::npos) return std::nullopt;
  return old;
}

}  // namespace medley
