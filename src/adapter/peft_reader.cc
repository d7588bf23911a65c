#include "adapter/peft_reader.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <sstream>

#include <fmt/format.h>

#include "adapter/expert_pairs.h"
#include "adapter/fused_experts.h"
#include "adapter/lora_tensors.h"
#include "adapter/peft_config.h"
#include "adapter/stacked_experts.h"
#include "adapter/target_map.h"
#include "ffi/ffi.h"
#include "spec/json_fields.h"

namespace medley {
namespace {

namespace fs = std::filesystem;
using Targeted = PeftConfig::Targeted;

constexpr char kConfigFile[] = "adapter_config.json";
constexpr char kWeightsFile[] = "adapter_model.safetensors";
constexpr uintmax_t kMaxConfigBytes = 8 << 20;

Result<std::string> read_config_text(const std::string& folder) {
  const std::string path = folder + "/" + kConfigFile;
  std::error_code error;
  if (!fs::is_directory(folder, error)) return not_found(fmt::format("{}: no such folder", folder));
  if (!fs::is_regular_file(path, error)) {
    return not_found(fmt::format("{}: no {}", folder, kConfigFile));
  }
  const uintmax_t size = fs::file_size(path, error);
  if (error || size > kMaxConfigBytes) {
    return invalid_argument(fmt::format("{}: {} bytes; at most {}", path, size, kMaxConfigBytes));
  }
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) return invalid_argument(fmt::format("{}: can't be read", path));
  return text.str();
}

Result<Checkpoint> open_weights(const std::string& folder, const Checkpoint::OnBytes& on_bytes) {
  std::error_code error;
  if (!fs::exists(folder + "/" + kWeightsFile, error)) {
    for (const char* name : {"adapter_model.bin", "adapter_model.pt"}) {
      if (!fs::exists(folder + "/" + name, error)) continue;
      return unsupported(
          fmt::format("{}: only {}, which is a pickle: reading one can run any code; save the "
                      "adapter as {}",
                      folder, name, kWeightsFile));
    }
    return not_found(fmt::format("{}: no {}", folder, kWeightsFile));
  }
  return Checkpoint::read_file(folder + "/" + kWeightsFile, on_bytes);
}

// Of the config; the weights follow.
ffi::Blake3Hasher hash_of(std::string_view config) {
  ffi::Blake3Hasher hasher;
  const uint64_t size = config.size();
  hasher.update(std::as_bytes(std::span(&size, 1)));
  hasher.update(std::as_bytes(std::span(config)));
  return hasher;
}

bool has_chat_template(const std::string& folder) {
  std::error_code error;
  if (fs::exists(folder + "/chat_template.jinja", error) ||
      fs::exists(folder + "/chat_template.json", error)) {
    return true;
  }
  std::ifstream in(folder + "/tokenizer_config.json", std::ios::binary);
  if (!in) return false;
  std::stringstream text;
  text << in.rdbuf();
  const Result<JsonFields> fields = JsonFields::parse(text.str(), "tokenizer_config.json");
  return fields.ok() && fields->has("chat_template");
}

bool is_dense_mlp(LoraModule module) {
  return module == LoraModule::kMlpGateUp || module == LoraModule::kMlpDown;
}

class PeftReader {
 public:
  PeftReader(const ModelSpec& spec, const PeftConfig& config, GroupedTensors tensors)
      : spec_(spec),
        config_(config),
        tensors_(std::move(tensors)),
        targets_(make_target_map(spec)),
        fused_(targets_, config),
        stacked_(targets_, config) {}

  Result<void> read(const TensorMap& file, const TensorMap* base, AdapterWeights& out) {
    MEDLEY_TRY(stacked_.take(tensors_.modules));
    any_expert_ = !stacked_.empty();
    MEDLEY_TRY(check_pairs(tensors_.modules));
    MEDLEY_TRY(check_base_copies(file, base));
    for (const auto& [key, tensors] : tensors_.modules) {
      const auto& [module, level] = key;
      const auto target = targets_.modules.find(module);
      if (target != targets_.modules.end() && level == 0) {
        MEDLEY_TRY(add_module(module, target->second, tensors));
      } else if (target == targets_.modules.end() && level <= 1) {
        MEDLEY_TRY(fused_.add(module, tensors, stacked_));
      } else {
        return tensor_error(tensors.a_name, "not part of the model");
      }
    }
    MEDLEY_TRY(check_complete(out));
    if (spec_.moe) experts_.build(spec_.moe->num_experts, pairs_, out.copies);
    stacked_.build(pairs_);
    MEDLEY_TRY(fused_.build(stacked_, pairs_));
    take_pairs(out);
    return {};
  }

 private:
  // The strongest claim of the config on a module, under either of its names.
  Result<Targeted> targeted(const std::string& module, const AdapterTarget& target) const {
    if (config_.targets_parameter(module + ".weight")) return Targeted::kYes;
    MEDLEY_TRY_ASSIGN(Targeted claim, config_.targets_module(module, target.site.module));
    if (claim == Targeted::kYes || target.alias.empty()) return claim;
    MEDLEY_TRY_ASSIGN(const Targeted other,
                      config_.targets_module(target.alias, target.site.module));
    return std::max(claim, other);
  }

  Result<void> add_module(const std::string& module, const AdapterTarget& target,
                          const LoraTensors& tensors) {
    MEDLEY_TRY_ASSIGN(const Targeted claim, targeted(module, target));
    if (claim == Targeted::kNo) {
      return tensor_error(tensors.a_name,
                          "adapter_config.json does not target this module, so PEFT would not "
                          "apply it");
    }
    const bool by_parameter = config_.targets_parameter(module + ".weight");
    MEDLEY_TRY_ASSIGN(const RankAndScale rank_and_scale,
                      config_.rank_and_scale(by_parameter ? module + ".weight" : module));
    const int rank = rank_and_scale.rank;
    MEDLEY_TRY(check_shape(tensors.a_name, tensors.a.shape, Shape({rank, target.in}), rank));
    MEDLEY_TRY(check_shape(tensors.b_name, tensors.b.shape, Shape({target.out(), rank}), rank));
    if (!target.alias.empty() && tensors_.modules.contains({target.alias, 0})) {
      return tensor_error(tensors.a_name, fmt::format("'{}' is the same module", target.alias));
    }
    if (target.expert >= 0) {
      // Fused levels come first in the map's order.
      const std::string* other = fused_.find(target.site);
      if (other == nullptr) other = stacked_.find(target.site, target.row_begin, target.row_end);
      if (other != nullptr) {
        return tensor_error(tensors.a_name, fmt::format("'{}' changes the same parameter", *other));
      }
      any_expert_ = true;
      experts_.add(target, rank_and_scale, matrix_of(tensors.a), matrix_of(tensors.b));
      return {};
    }
    any_dense_ |= is_dense_mlp(target.site.module);
    LoraPair pair{.row_begin = target.row_begin, .row_end = target.row_end, .rank = rank};
    pair.a.push_back(matrix_of(tensors.a));
    pair.b.push_back(matrix_of(tensors.b));
    pair.scale.assign(rank, rank_and_scale.scale);
    pairs_[target.site].push_back(std::move(pair));
    return {};
  }

  static Result<void> check_shape(const std::string& name, const Shape& found,
                                  const Shape& expected, int rank) {
    if (found == expected) return {};
    return tensor_error(name, fmt::format("expected shape {} (rank {}), found {}",
                                          expected.to_string(), rank, found.to_string()));
  }

  // Every module that the config targets must be there. Experts may be absent altogether: in
  // training they may have been held as parameters that target_modules does not reach. So may the
  // dense layers of a model that has experts: the same names stand for both.
  Result<void> check_complete(AdapterWeights& out) {
    bool experts_named = false;
    bool dense_named = false;
    for (const auto& [module, target] : targets_.modules) {
      if (target.is_alias) continue;
      MEDLEY_TRY_ASSIGN(const Targeted claim, targeted(module, target));
      if (claim != Targeted::kYes) continue;
      const bool is_dense = is_dense_mlp(target.site.module);
      experts_named |= target.expert >= 0;
      dense_named |= is_dense;
      if (target.expert >= 0 && !any_expert_) continue;
      if (is_dense && any_expert_ && !any_dense_) continue;
      if (stacked_.find(target.site, target.row_begin, target.row_end) != nullptr) continue;
      if (tensors_.modules.contains({module, 0}) || tensors_.modules.contains({target.alias, 0})) {
        continue;
      }
      return invalid_argument(
          fmt::format("adapter_config.json targets '{}', but the file has no tensors for it",
                      module),
          module);
    }
    if (experts_named && !any_expert_ && fused_.empty()) {
      out.warnings.push_back(
          "target_modules names projections of the experts, but the file has none: the experts "
          "stay as they are");
    }
    if (dense_named && any_expert_ && !any_dense_) {
      out.warnings.push_back(
          "target_modules names projections of the dense layers, but the file has none: they stay "
          "as they are");
    }
    return {};
  }

  Result<void> check_base_copies(const TensorMap& file, const TensorMap* base) const {
    for (const auto& [module, name] : tensors_.base) {
      const std::string weight = module + ".weight";
      const bool known = weight == spec_.names.lm_head || weight == spec_.names.embed;
      if (!known || !name.ends_with(".weight")) {
        return tensor_error(name, "neither a LoRA tensor nor an embedding of the model");
      }
      const ConstTensorView* original = nullptr;
      if (base != nullptr) {
        auto found = base->find(weight);
        if (found == base->end() && spec_.tied_lm_head) found = base->find(spec_.names.embed);
        if (found != base->end()) original = &found->second;
      }
      if (original == nullptr) {
        return tensor_error(name,
                            "a copy of a base weight, which can't be compared with the model's "
                            "here; save the adapter without embedding layers",
                            ErrorCode::kUnsupported);
      }
      const ConstTensorView& copy = file.find(name)->second;
      if (copy.shape != original->shape || to_float(copy) != to_float(*original)) {
        return tensor_error(name,
                            fmt::format("differs from the model's {} {}; fully trained embeddings "
                                        "are not supported",
                                        weight, original->shape.to_string()),
                            ErrorCode::kUnsupported);
      }
    }
    return {};
  }

  void take_pairs(AdapterWeights& out) {
    for (auto& [site, pairs] : pairs_) {
      std::sort(pairs.begin(), pairs.end(),
                [](const LoraPair& x, const LoraPair& y) { return x.row_begin < y.row_begin; });
      for (size_t i = 0; i < pairs.size(); ++i) {
        out.max_rank = std::max(out.max_rank, pairs[i].rank);
        if (i > 0) MEDLEY_CHECK_GE(pairs[i].row_begin, pairs[i - 1].row_end);
      }
      out.modules.push_back({site, std::move(pairs)});
    }
    std::sort(out.modules.begin(), out.modules.end(), [](const auto& x, const auto& y) {
      return std::tie(x.site.layer, x.site.module) < std::tie(y.site.layer, y.site.module);
    });
  }

  const ModelSpec& spec_;
  const PeftConfig& config_;
  GroupedTensors tensors_;
  const TargetMap targets_;
  FusedExperts fused_;
  StackedExperts stacked_;
  ExpertPairs experts_;
  bool any_expert_ = false;
  bool any_dense_ = false;  // an MLP of a dense layer
  std::map<LoraSite, std::vector<LoraPair>> pairs_;
};

}  // namespace

Result<AdapterWeights> read_peft_adapter(const std::string& folder, const ModelSpec& spec,
                                         const TensorMap* base) {
  MEDLEY_TRY_ASSIGN(const std::string text, read_config_text(folder));
  MEDLEY_TRY_ASSIGN(const PeftConfig config, PeftConfig::parse(text, kConfigFile));
  ffi::Blake3Hasher hasher = hash_of(text);
  MEDLEY_TRY_ASSIGN(
      Checkpoint checkpoint,
      open_weights(folder, [&](std::span<const std::byte> bytes) { hasher.update(bytes); }));
  AdapterWeights out;
  out.checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint));
  out.num_bytes = out.checkpoint->num_bytes();
  const TensorMap& file = out.checkpoint->tensors();
  if (file.empty()) return invalid_argument(fmt::format("{}: no tensors", kWeightsFile));
  out.hash = ffi::to_hex(hasher.finish());
  MEDLEY_TRY_ASSIGN(GroupedTensors tensors, group_tensors(file));
  const bool changes_nothing = tensors.changes_nothing;
  MEDLEY_TRY(PeftReader(spec, config, std::move(tensors)).read(file, base, out));
  if (changes_nothing) {
    out.warnings.push_back("every lora_B (or every lora_A) is zero: it changes nothing");
  }
  if (has_chat_template(folder)) {
    out.warnings.push_back("its own chat template is not used");
  }
  return out;
}

}  // namespace medley
