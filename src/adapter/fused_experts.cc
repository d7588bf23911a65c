#include "adapter/fused_experts.h"

#include <fmt/format.h>

namespace medley {
namespace {

MatrixView transposed(MatrixView view) {
  std::swap(view.rows, view.cols);
  std::swap(view.row_stride, view.col_stride);
  return view;
}

// Of lora_A (num * r, p): rows [idx * r, (idx + 1) * r).
MatrixView rows_of(const ConstTensorView& tensor, int num, int idx) {
  const int64_t rank = tensor.shape[0] / num;
  const int64_t p = tensor.shape[1];
  return {.dtype = tensor.dtype,
          .data = static_cast<const char*>(tensor.data) +
                  idx * rank * p * static_cast<int64_t>(size_of(tensor.dtype)),
          .rows = rank,
          .cols = p,
          .row_stride = p};
}

// Of lora_B (q, r * num): columns idx, idx + num, ...
MatrixView columns_of(const ConstTensorView& tensor, int num, int idx) {
  const int64_t rank = tensor.shape[1] / num;
  return {.dtype = tensor.dtype,
          .data = static_cast<const char*>(tensor.data) +
                  idx * static_cast<int64_t>(size_of(tensor.dtype)),
          .rows = tensor.shape[0],
          .cols = rank,
          .row_stride = rank * num,
          .col_stride = num};
}

}  // namespace

Result<void> FusedExperts::add(const std::string& module, const LoraTensors& tensors,
                               const StackedExperts& stacked) {
  const int64_t p = tensors.a.shape[1];
  const int64_t q = tensors.b.shape[0];
  std::vector<std::string> sizes;
  for (const char* name : {".gate_up_proj", ".down_proj"}) {
    const auto found = targets_.parameters.find(module + name);
    if (found == targets_.parameters.end()) break;
    const FusedTarget& target = found->second;
    sizes.push_back(fmt::format("{} and {}", target.in, target.out));
    const bool fits = (p == target.in && q == target.out) || (p == target.out && q == target.in);
    if (!fits) continue;
    const std::string& parameter = found->first;
    if (!config_.targets_parameter(parameter)) {
      return tensor_error(tensors.a_name,
                          fmt::format("by its shape it changes '{}', which target_parameters in "
                                      "adapter_config.json does not name",
                                      parameter));
    }
    MEDLEY_TRY_ASSIGN(const RankAndScale rank_and_scale, config_.rank_and_scale(parameter));
    MEDLEY_TRY_ASSIGN(const Level level, level_of(target, tensors, rank_and_scale));
    const std::string* other = stacked.find(target.site, /*row_begin=*/0, target.out);
    if (other == nullptr) other = find(target.site);
    if (other != nullptr) {
      return tensor_error(tensors.a_name, fmt::format("'{}' changes '{}' too", *other, parameter));
    }
    levels_.emplace(parameter, level);
    return {};
  }
  if (sizes.empty()) return tensor_error(tensors.a_name, "not part of the model");
  return tensor_error(tensors.a_name,
                      fmt::format("lora_A and lora_B span {} and {}; expected {} in either order",
                                  p, q, fmt::join(sizes, ", or ")));
}

Result<FusedExperts::Level> FusedExperts::level_of(const FusedTarget& target,
                                                   const LoraTensors& tensors,
                                                   const RankAndScale& rank_and_scale) {
  const int64_t rank = rank_and_scale.rank;
  const int num_experts = target.num_experts;
  const int64_t a_rows = tensors.a.shape[0];
  const int64_t b_cols = tensors.b.shape[1];
  Level level{target, tensors, rank_and_scale, num_experts, num_experts};
  // A single matrix for all experts shows by the other side's having one for each.
  if (num_experts > 1 && a_rows == rank && b_cols == rank * num_experts) level.num_a = 1;
  if (num_experts > 1 && b_cols == rank && a_rows == rank * num_experts) level.num_b = 1;
  const std::pair<const std::string&, std::pair<Shape, Shape>> checks[] = {
      {tensors.a_name, {Shape({rank * level.num_a, tensors.a.shape[1]}), tensors.a.shape}},
      {tensors.b_name, {Shape({tensors.b.shape[0], rank * level.num_b}), tensors.b.shape}}};
  for (const auto& [tensor, shapes] : checks) {
    if (shapes.first == shapes.second) continue;
    return tensor_error(tensor, fmt::format("expected shape {} ({} experts of rank {}), found {}",
                                            shapes.first.to_string(), num_experts, rank,
                                            shapes.second.to_string()));
  }
  return level;
}

const std::string* FusedExperts::find(LoraSite site) const {
  for (const auto& [parameter, level] : levels_) {
    if (level.target.site == site) return &level.tensors.a_name;
  }
  return nullptr;
}

Result<bool> FusedExperts::a_spans_input() const {
  const Level* says_input = nullptr;
  const Level* says_output = nullptr;
  for (const auto& [parameter, level] : levels_) {
    if (level.target.in == level.target.out) continue;
    (level.tensors.a.shape[1] == level.target.in ? says_input : says_output) = &level;
  }
  if (says_input != nullptr && says_output != nullptr) {
    return tensor_error(
        says_output->tensors.a_name,
        fmt::format("by its shape lora_A spans the output, but that of '{}' spans the input",
                    says_input->tensors.a_name));
  }
  if (says_input != nullptr || says_output != nullptr) return says_input != nullptr;

  // All parameters are square. GPT-OSS holds (E, in, out) and says so: every version agrees.
  const Level& level = levels_.begin()->second;
  if (level.target.in_first) return true;
  const std::optional<bool> spans_first = config_.fused_a_spans_first();
  if (!spans_first) {
    return tensor_error(
        level.tensors.a_name,
        fmt::format("the parameter is square ({0} x {0}), and peft_version in adapter_config.json "
                    "does not tell whether lora_A spans its input or its output",
                    level.target.in));
  }
  return !*spans_first;
}

Result<void> FusedExperts::build(const StackedExperts& stacked,
                                 std::map<LoraSite, std::vector<LoraPair>>& pairs) const {
  bool spans_input = true;
  if (!levels_.empty()) {
    MEDLEY_TRY_ASSIGN(spans_input, a_spans_input());
  }
  for (const auto& [parameter, target] : targets_.parameters) {
    if (config_.targets_parameter(parameter) && !levels_.contains(parameter) &&
        stacked.find(target.site, /*row_begin=*/0, target.out) == nullptr) {
      return invalid_argument(
          fmt::format("target_parameters names '{}', but the file has no tensors for it",
                      parameter),
          parameter);
    }
  }
  for (const auto& [parameter, level] : levels_) {
    const FusedTarget& target = level.target;
    const int rank = level.rank_and_scale.rank;
    LoraPair pair{.row_begin = 0, .row_end = target.out, .rank = rank};
    pair.scale.assign(rank, level.rank_and_scale.scale);
    // lora_A and lora_B in the roles that they have in the product.
    std::vector<MatrixView>& of_a = spans_input ? pair.a : pair.b;
    std::vector<MatrixView>& of_b = spans_input ? pair.b : pair.a;
    for (int i = 0; i < level.num_a; ++i) {
      const MatrixView rows = rows_of(level.tensors.a, level.num_a, i);
      of_a.push_back(spans_input ? rows : transposed(rows));
    }
    for (int i = 0; i < level.num_b; ++i) {
      const MatrixView columns = columns_of(level.tensors.b, level.num_b, i);
      of_b.push_back(spans_input ? columns : transposed(columns));
    }
    pair.b_interleaved = target.interleaved;
    pairs[target.site].push_back(std::move(pair));
  }
  return {};
}

}  // namespace medley
