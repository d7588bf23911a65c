#include "adapter/fused_experts.h"

#include <fmt/format.h>

namespace medley {
namespace {

// Rows gate, up, gate, up, ... of an expert -> all gate rows, then all up rows.
template <class T>
void deinterleave(const MatrixView& source, T* out) {
  const int64_t half = source.rows / 2;
  for (int64_t row = 0; row < source.rows; ++row) {
    const int64_t from = row < half ? 2 * row : 2 * (row - half) + 1;
    const T* in = static_cast<const T*>(source.data) + from * source.row_stride;
    for (int64_t col = 0; col < source.cols; ++col) *out++ = in[col * source.col_stride];
  }
}

MatrixView deinterleaved(const MatrixView& source, char* out) {
  if (size_of(source.dtype) == 2) {
    deinterleave(source, reinterpret_cast<uint16_t*>(out));
  } else {
    deinterleave(source, reinterpret_cast<uint32_t*>(out));
  }
  return {.dtype = source.dtype,
          .data = out,
          .rows = source.rows,
          .cols = source.cols,
          .row_stride = source.cols};
}

struct FusedMatrices {
  MatrixView a;  // (r, in)
  MatrixView b;  // (out, r)
};

FusedMatrices matrices_of(const LoraTensors& tensors, int num_experts, int expert,
                          bool a_spans_input) {
  const auto at = [](const ConstTensorView& tensor, int64_t element) {
    return static_cast<const char*>(tensor.data) + element * int64_t(size_of(tensor.dtype));
  };
  const int64_t rank = tensors.a.shape[0] / num_experts;
  const int64_t p = tensors.a.shape[1];
  const int64_t q = tensors.b.shape[0];
  const MatrixView a{.dtype = tensors.a.dtype,
                     .data = at(tensors.a, expert * rank * p),
                     .rows = rank,
                     .cols = p,
                     .row_stride = p,
                     .col_stride = 1};
  const MatrixView b{.dtype = tensors.b.dtype,
                     .data = at(tensors.b, expert),
                     .rows = q,
                     .cols = rank,
                     .row_stride = rank * num_experts,
                     .col_stride = num_experts};
  if (a_spans_input) return {a, b};
  const auto transposed = [](MatrixView view) {
    std::swap(view.rows, view.cols);
    std::swap(view.row_stride, view.col_stride);
    return view;
  };
  return {transposed(b), transposed(a)};
}

}  // namespace

Result<void> FusedExperts::add(const std::string& module, const LoraTensors& tensors) {
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
    const int64_t rows = int64_t{rank_and_scale.rank} * target.num_experts;
    const std::pair<const std::string&, std::pair<Shape, Shape>> checks[] = {
        {tensors.a_name, {Shape({rows, p}), tensors.a.shape}},
        {tensors.b_name, {Shape({q, rows}), tensors.b.shape}}};
    for (const auto& [tensor, shapes] : checks) {
      if (shapes.first == shapes.second) continue;
      return tensor_error(tensor, fmt::format("expected shape {} ({} experts of rank {}), found {}",
                                              shapes.first.to_string(), target.num_experts,
                                              rank_and_scale.rank, shapes.second.to_string()));
    }
    if (!levels_.emplace(parameter, Level{target, tensors, rank_and_scale}).second) {
      return tensor_error(
          tensors.a_name,
          fmt::format("'{}' changes '{}' too", levels_[parameter].tensors.a_name, parameter));
    }
    return {};
  }
  if (sizes.empty()) return tensor_error(tensors.a_name, "not part of the model");
  return tensor_error(tensors.a_name,
                      fmt::format("lora_A and lora_B span {} and {}; expected {} in either order",
                                  p, q, fmt::join(sizes, ", or ")));
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

Result<void> FusedExperts::build(std::map<LoraSite, std::vector<LoraPair>>& pairs,
                                 std::vector<HostTensor>& copies) const {
  bool spans_input = true;
  if (!levels_.empty()) {
    MEDLEY_TRY_ASSIGN(spans_input, a_spans_input());
  }
  for (const auto& [parameter, target] : targets_.parameters) {
    if (config_.targets_parameter(parameter) && !levels_.contains(parameter)) {
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
    HostTensor copy;
    char* out = nullptr;
    if (target.interleaved) {
      const DType dtype = (spans_input ? level.tensors.b : level.tensors.a).dtype;
      copy = HostTensor(dtype, Shape({target.num_experts, target.out, rank}));
      out = copy.as<char>();
    }
    for (int expert = 0; expert < target.num_experts; ++expert) {
      const FusedMatrices matrices =
          matrices_of(level.tensors, target.num_experts, expert, spans_input);
      pair.a.push_back(matrices.a);
      if (!target.interleaved) {
        pair.b.push_back(matrices.b);
        continue;
      }
      pair.b.push_back(deinterleaved(matrices.b, out));
      out += matrices.b.rows * matrices.b.cols * int64_t(size_of(matrices.b.dtype));
    }
    if (target.interleaved) copies.push_back(std::move(copy));
    pairs[target.site].push_back(std::move(pair));
  }
  return {};
}

}  // namespace medley
