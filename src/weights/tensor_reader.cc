#include "weights/tensor_reader.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace medley {

void TensorReader::fail(const std::string& name, const std::string& problem) {
  if (error_) return;
  error_ = invalid_argument(fmt::format("tensor '{}': {}", name, problem), name);
}

ConstTensorView TensorReader::take(const std::string& name, const Shape& shape,
                                   std::initializer_list<DType> dtypes) {
  const ConstTensorView missing(nullptr, *dtypes.begin(), shape);
  if (wanted_ != nullptr) {
    const bool floats = std::find(dtypes.begin(), dtypes.end(), wanted_dtype_) != dtypes.end();
    const ConstTensorView wanted(nullptr, floats ? wanted_dtype_ : *dtypes.begin(), shape);
    wanted_->insert_or_assign(name, wanted);
    used_.insert(name);
    return wanted;
  }
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    fail(name, fmt::format("missing; expected shape {}", shape.to_string()));
    return missing;
  }
  used_.insert(name);
  const ConstTensorView& tensor = found->second;
  if (tensor.shape != shape) {
    fail(name,
         fmt::format("expected shape {}, found {}", shape.to_string(), tensor.shape.to_string()));
    return missing;
  }
  if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) == dtypes.end()) {
    std::vector<std::string> names;
    for (const DType dtype : dtypes) names.emplace_back(to_string(dtype));
    fail(name, fmt::format("expected dtype {}, found {}", fmt::join(names, " or "),
                           to_string(tensor.dtype)));
    return missing;
  }
  return tensor;
}

ConstTensorView TensorReader::floats(const std::string& name, const Shape& shape) {
  return take(name, shape, {DType::kF32, DType::kBF16, DType::kF16});
}

ConstTensorView TensorReader::bytes(const std::string& name, const Shape& shape) {
  return take(name, shape, {DType::kU8});
}

VectorView TensorReader::vector(const std::string& name, int64_t size) {
  const ConstTensorView tensor = floats(name, Shape({size}));
  return {.dtype = tensor.dtype, .data = tensor.data, .size = size};
}

MatrixView TensorReader::matrix(const std::string& name, int64_t rows, int64_t cols) {
  const ConstTensorView tensor = floats(name, Shape({rows, cols}));
  return {
      .dtype = tensor.dtype, .data = tensor.data, .rows = rows, .cols = cols, .row_stride = cols};
}

Result<void> TensorReader::finish() const {
  if (error_) return *error_;
  for (const auto& [name, tensor] : tensors_) {
    if (used_.contains(name)) continue;
    return invalid_argument(fmt::format("tensor '{}' ({} {}) is not part of the model", name,
                                        to_string(tensor.dtype), tensor.shape.to_string()),
                            name);
  }
  return {};
}

}  // namespace medley
