#pragma once

#include <map>
#include <string>
#include <utility>

#include "adapter/tensor_key.h"
#include "backend/weights.h"
#include "base/error.h"
#include "tensor/tensor.h"
#include "weights/checkpoint.h"

namespace medley {

// The A and B of one module of an adapter file, as stored; either may be missing (no name).
struct LoraTensors {
  ConstTensorView a, b;
  std::string a_name, b_name;
};

// By module name and ".base_layer" level.
using LoraTensorMap = std::map<std::pair<std::string, int>, LoraTensors>;

struct GroupedTensors {
  LoraTensorMap modules;
  std::map<std::string, std::string> base;  // module -> tensor: weights of the base model
  bool changes_nothing = true;              // every B, or every A, is zero
};

// Groups an adapter file's tensors by module. Refuses, by name: what is neither LoRA nor a base
// weight, a dtype that is not floating, and values that are not finite.
Result<GroupedTensors> group_tensors(const TensorMap& tensors);

// Refuses, by name: an A without its B, and what is not two-dimensional.
Result<void> check_pairs(const LoraTensorMap& modules);

// Matrix `idx` of a tensor of shape (n, rows, cols), or the one of shape (rows, cols).
MatrixView matrix_of(const ConstTensorView& tensor, int64_t idx = 0);

Error tensor_error(const std::string& name, const std::string& problem,
                   ErrorCode code = ErrorCode::kInvalidArgument);

}  // namespace medley
