#pragma once

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "backend/weights.h"
#include "base/error.h"
#include "weights/checkpoint.h"

namespace medley {

// Takes tensors from a list by name, each with the shape it must have, and remembers which were
// taken. The first error sticks (later calls return empty views); finish() reports it.
class TensorReader {
 public:
  explicit TensorReader(const TensorMap& tensors) : tensors_(tensors) {}
  // Lists what is asked for in `wanted`, floating tensors as `dtype`, instead of taking it.
  TensorReader(TensorMap& wanted, DType dtype)
      : tensors_(wanted), wanted_(&wanted), wanted_dtype_(dtype) {}

  bool has(std::string_view name) const { return tensors_.contains(name); }
  // float32, bfloat16 or float16.
  ConstTensorView floats(const std::string& name, const Shape& shape);
  ConstTensorView bytes(const std::string& name, const Shape& shape);  // uint8
  VectorView vector(const std::string& name, int64_t size);
  MatrixView matrix(const std::string& name, int64_t rows, int64_t cols);
  // Marks a tensor that is known to be harmless.
  void ignore(const std::string& name) { used_.insert(name); }
  void fail(const std::string& name, const std::string& problem);

  bool ok() const { return !error_.has_value(); }
  // The first error, else kInvalidArgument for a tensor that was not taken.
  Result<void> finish() const;

 private:
  ConstTensorView take(const std::string& name, const Shape& shape,
                       std::initializer_list<DType> dtypes);

  const TensorMap& tensors_;
  TensorMap* wanted_ = nullptr;
  DType wanted_dtype_ = DType::kBF16;
  std::set<std::string, std::less<>> used_;
  std::optional<Error> error_;
};

// `data` moved on by `bytes`; data may be null (then the result is only good for not being read).
inline const void* at_byte(const void* data, int64_t bytes) {
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(data) + bytes);
}
inline const void* at_element(const ConstTensorView& tensor, int64_t index) {
  return at_byte(tensor.data, index * static_cast<int64_t>(size_of(tensor.dtype)));
}

}  // namespace medley
