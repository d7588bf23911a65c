#pragma once

#include <map>
#include <string>
#include <utility>

#include "adapter/tensor_key.h"
#include "base/error.h"
#include "tensor/tensor.h"
#include "weights/checkpoint.h"

namespace medley {

// The A and B of one module of an adapter file, as stored.
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

// Pairs up an adapter file's tensors. Refuses, by name: an A without its B, what is no LoRA tensor,
// a dtype that is not floating, and values that are not finite.
Result<GroupedTensors> group_tensors(const TensorMap& tensors);

Error tensor_error(const std::string& name, const std::string& problem,
                   ErrorCode code = ErrorCode::kInvalidArgument);

}  // namespace medley
