#include "adapter/stacked_experts.h"

#include <utility>

#include <fmt/format.h>

namespace medley {
namespace {

const std::string& name_of(const LoraTensors& tensors, bool is_a) {
  return is_a ? tensors.a_name : tensors.b_name;
}
const ConstTensorView& tensor_of(const LoraTensors& tensors, bool is_a) {
  return is_a ? tensors.a : tensors.b;
}

// The tensors of one expert's projection, by whichever of its names; null when there are none.
LoraTensors* find_expert(const StackedTarget& target, int expert, bool is_a,
                         LoraTensorMap& modules) {
  for (const std::string& name : target.names) {
    const auto found =
        modules.find({fmt::format("{}.{}.{}", target.experts, expert, name), /*level=*/0});
    if (found != modules.end() && !name_of(found->second, is_a).empty()) return &found->second;
  }
  return nullptr;
}

}  // namespace

Result<void> StackedExperts::take(LoraTensorMap& modules) {
  for (const StackedTarget& target : targets_.stacked) {
    MEDLEY_TRY(take_projection(target, modules));
  }
  // Single experts' tensors whose A and B both went into a stack.
  std::erase_if(modules, [](const auto& entry) {
    return entry.second.a_name.empty() && entry.second.b_name.empty();
  });
  return {};
}

Result<void> StackedExperts::take_projection(const StackedTarget& target, LoraTensorMap& modules) {
  LoraTensors stacked;
  std::string module;
  for (const std::string& name : target.names) {
    const auto found = modules.find({target.experts + "." + name, /*level=*/0});
    if (found == modules.end()) continue;
    const std::string& found_name = name_of(found->second, !found->second.a_name.empty());
    if (!module.empty()) {
      return tensor_error(found_name, fmt::format("'{}' is the same module", module));
    }
    module = found->first.first;
    stacked = std::move(found->second);
    modules.erase(found);
  }
  if (module.empty()) return {};

  const std::string& any_name = name_of(stacked, !stacked.a_name.empty());
  if (target.rows_unclear) {
    return tensor_error(
        any_name,
        "the model interleaves the rows of gate and up, and the file does not tell whether this "
        "tensor does; give gate_proj and up_proj (w1 and w3) apart",
        ErrorCode::kUnsupported);
  }
  MEDLEY_TRY_ASSIGN(const bool targeted, is_targeted(target));
  if (!targeted) {
    return tensor_error(any_name, "adapter_config.json does not target this module");
  }
  if (const std::string* other = find(target.site, target.row_begin, target.row_end)) {
    return tensor_error(any_name, fmt::format("'{}' changes the same parameter", *other));
  }
  MEDLEY_TRY_ASSIGN(const RankAndScale rank_and_scale, config_.rank_and_scale(module));
  const int rank = rank_and_scale.rank;
  Projection projection{.target = &target, .rank_and_scale = rank_and_scale, .a = {}, .b = {}};
  MEDLEY_TRY_ASSIGN(projection.a, take_side(target, stacked, /*is_a=*/true, rank, modules));
  MEDLEY_TRY_ASSIGN(projection.b, take_side(target, stacked, /*is_a=*/false, rank, modules));
  projections_.push_back(std::move(projection));
  return {};
}

Result<StackedExperts::Side> StackedExperts::take_side(const StackedTarget& target,
                                                       const LoraTensors& stacked, bool is_a,
                                                       int rank, LoraTensorMap& modules) const {
  const int64_t rows = is_a ? rank : target.row_end - target.row_begin;
  const int64_t cols = is_a ? target.in : rank;
  const Shape each({rows, cols});
  const std::string& stacked_name = name_of(stacked, is_a);
  Side side{.matrices = {}, .name = stacked_name};
  for (int expert = 0; expert < target.num_experts; ++expert) {
    LoraTensors* found = find_expert(target, expert, is_a, modules);
    if (!stacked_name.empty()) {
      if (found == nullptr) continue;
      return tensor_error(name_of(*found, is_a),
                          fmt::format("'{}' is there for all experts", stacked_name));
    }
    if (found == nullptr) {
      return tensor_error(fmt::format("{}.{}.{}.lora_{}", target.experts, expert, target.names[0],
                                      is_a ? 'A' : 'B'),
                          fmt::format("missing, though '{}' is there for all {} experts",
                                      name_of(stacked, !is_a), target.num_experts));
    }
    const ConstTensorView& tensor = tensor_of(*found, is_a);
    std::string& name = is_a ? found->a_name : found->b_name;
    if (tensor.shape != each) {
      return tensor_error(name, fmt::format("expected shape {} (rank {}), found {}",
                                            each.to_string(), rank, tensor.shape.to_string()));
    }
    side.matrices.push_back(matrix_of(tensor));
    if (expert == 0) side.name = name;
    name.clear();
  }
  if (stacked_name.empty()) return side;

  const ConstTensorView& tensor = tensor_of(stacked, is_a);
  const Shape one({1, rows, cols});
  const Shape all({target.num_experts, rows, cols});
  if (tensor.shape != each && tensor.shape != one && tensor.shape != all) {
    return tensor_error(
        stacked_name,
        fmt::format("expected shape {} ({} experts of rank {}), or {} or {} for one that all "
                    "experts share, found {}",
                    all.to_string(), target.num_experts, rank, one.to_string(), each.to_string(),
                    tensor.shape.to_string()));
  }
  const int64_t num_matrices = tensor.shape.rank() == 3 ? tensor.shape[0] : 1;
  for (int64_t i = 0; i < num_matrices; ++i) side.matrices.push_back(matrix_of(tensor, i));
  return side;
}

// No version of PEFT applies such tensors, so any claim on the experts counts.
Result<bool> StackedExperts::is_targeted(const StackedTarget& target) const {
  std::vector<std::string> modules = {target.experts};
  for (const std::string& name : target.names) {
    modules.push_back(fmt::format("{}.{}", target.experts, name));
    modules.push_back(fmt::format("{}.0.{}", target.experts, name));
  }
  for (const std::string& module : modules) {
    MEDLEY_TRY_ASSIGN(const PeftConfig::Targeted claim,
                      config_.targets_module(module, target.site.module));
    if (claim != PeftConfig::Targeted::kNo) return true;
  }
  const bool is_down = target.site.module == LoraModule::kExpertDown;
  return config_.targets_parameter(target.experts + (is_down ? ".down_proj" : ".gate_up_proj"));
}

const std::string* StackedExperts::find(LoraSite site, int64_t row_begin, int64_t row_end) const {
  for (const Projection& projection : projections_) {
    const StackedTarget& target = *projection.target;
    if (target.site == site && target.row_begin < row_end && row_begin < target.row_end) {
      return &projection.a.name;
    }
  }
  return nullptr;
}

void StackedExperts::build(std::map<LoraSite, std::vector<LoraPair>>& pairs) const {
  for (const Projection& projection : projections_) {
    const StackedTarget& target = *projection.target;
    LoraPair pair{.row_begin = target.row_begin,
                  .row_end = target.row_end,
                  .rank = projection.rank_and_scale.rank,
                  .a = projection.a.matrices,
                  .b = projection.b.matrices};
    pair.scale.assign(pair.rank, projection.rank_and_scale.scale);
    pairs[target.site].push_back(std::move(pair));
  }
}

}  // namespace medley
