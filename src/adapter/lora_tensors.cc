#include "adapter/lora_tensors.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "adapter/tensor_scan.h"
#include "base/loading_threads.h"
#include "base/thread_pool.h"

namespace medley {
namespace {

bool is_floating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// The name of the B that belongs to an A, and the other way round.
std::string other_side(std::string name) {
  for (const std::string_view part : {".lora_", ".lora_embedding_"}) {
    const size_t at = name.rfind(part);
    if (at == std::string::npos) continue;
    char& side = name[at + part.size()];
    if (side != 'A' && side != 'B') continue;
    side = side == 'A' ? 'B' : 'A';
    break;
  }
  return name;
}

// Of the floating tensors, on several threads.
std::map<std::string_view, TensorScan> scan_all(const TensorMap& tensors) {
  std::vector<std::pair<const ConstTensorView*, TensorScan*>> work;
  std::map<std::string_view, TensorScan> scans;
  for (const auto& [name, tensor] : tensors) {
    if (is_floating(tensor.dtype)) work.emplace_back(&tensor, &scans[name]);
  }
  const auto count = static_cast<int64_t>(work.size());
  ThreadPool(static_cast<int>(std::clamp<int64_t>(count, 1, num_loading_threads())))
      .parallel_for(count, [&](int64_t i) { *work[i].second = scan_tensor(*work[i].first); });
  return scans;
}

}  // namespace

Error tensor_error(const std::string& name, const std::string& problem, ErrorCode code) {
  return {code, fmt::format("tensor '{}': {}", name, problem), name};
}

Result<GroupedTensors> group_tensors(const TensorMap& tensors) {
  GroupedTensors out;
  bool any_a = false;
  bool any_b = false;
  const std::map<std::string_view, TensorScan> scans = scan_all(tensors);
  for (const auto& [name, tensor] : tensors) {
    const TensorKey key = parse_tensor_key(name);
    if (key.tensor == LoraTensor::kMagnitude) {
      return tensor_error(name, "DoRA is not supported", ErrorCode::kUnsupported);
    }
    if (key.tensor == LoraTensor::kBiasB) {
      return tensor_error(name, "a bias on lora_B is not supported", ErrorCode::kUnsupported);
    }
    if (!is_floating(tensor.dtype)) {
      return tensor_error(name, fmt::format("expected dtype float32, bfloat16 or float16, found {}",
                                            to_string(tensor.dtype)));
    }
    if (key.tensor == LoraTensor::kBase) {
      out.base.emplace(key.module, name);
      continue;
    }
    const TensorScan scan = scans.at(name);
    if (!scan.finite) return tensor_error(name, "holds NaN or infinity");
    const bool is_a = key.tensor == LoraTensor::kA || key.tensor == LoraTensor::kEmbeddingA;
    (is_a ? any_a : any_b) |= !scan.all_zero;
    LoraTensors& module = out.modules[{key.module, key.level}];
    std::string& slot = is_a ? module.a_name : module.b_name;
    if (!slot.empty()) return tensor_error(name, fmt::format("'{}' is the same one", slot));
    slot = name;
    (is_a ? module.a : module.b) = tensor;
  }
  out.changes_nothing = !any_a || !any_b;
  return out;
}

Result<void> check_pairs(const LoraTensorMap& modules) {
  for (const auto& [key, module] : modules) {
    for (const auto& [name, tensor] :
         {std::tie(module.a_name, module.a), std::tie(module.b_name, module.b)}) {
      if (name.empty() || tensor.shape.rank() == 2) continue;
      return tensor_error(
          name, fmt::format("expected two dimensions, found shape {}", tensor.shape.to_string()));
    }
    if (!module.a_name.empty() && !module.b_name.empty()) continue;
    const std::string& found = module.a_name.empty() ? module.b_name : module.a_name;
    return tensor_error(other_side(found), fmt::format("missing, though '{}' is there", found));
  }
  return {};
}

MatrixView matrix_of(const ConstTensorView& tensor, int64_t idx) {
  const int rank = tensor.shape.rank();
  const int64_t rows = tensor.shape[rank - 2];
  const int64_t cols = tensor.shape[rank - 1];
  const int64_t offset = idx * rows * cols * static_cast<int64_t>(size_of(tensor.dtype));
  return {.dtype = tensor.dtype,
          .data = static_cast<const char*>(tensor.data) + offset,
          .rows = rows,
          .cols = cols,
          .row_stride = cols};
}

}  // namespace medley
