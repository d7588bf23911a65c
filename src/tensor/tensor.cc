#include "tensor/tensor.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace medley {

Shape::Shape(const std::vector<int64_t>& dims) : rank_(static_cast<int>(dims.size())) {
  MEDLEY_CHECK_LE(rank_, kMaxRank);
  for (int i = 0; i < rank_; ++i) {
    MEDLEY_CHECK_GE(dims[i], 0);
    dims_[i] = dims[i];
  }
}

int64_t Shape::num_elements() const {
  int64_t count = 1;
  for (int i = 0; i < rank_; ++i) count *= dims_[i];
  return count;
}

std::string Shape::to_string() const {
  return fmt::format("({})", fmt::join(dims_.begin(), dims_.begin() + rank_, ", "));
}

HostTensor::HostTensor(DType dtype, Shape shape) : view_{nullptr, dtype, shape} {
  const size_t bytes = (view_.num_bytes() + 63) / 64 * 64;
  if (bytes == 0) return;
  view_.data = std::aligned_alloc(64, bytes);
  MEDLEY_CHECK(view_.data != nullptr, "out of host memory");
  std::memset(view_.data, 0, bytes);
}

HostTensor::HostTensor(HostTensor&& other) noexcept : view_(std::exchange(other.view_, {})) {}

HostTensor& HostTensor::operator=(HostTensor&& other) noexcept {
  std::swap(view_, other.view_);
  return *this;
}

HostTensor::~HostTensor() { std::free(view_.data); }

std::vector<float> to_float(const ConstTensorView& tensor) {
  const int64_t count = tensor.shape.num_elements();
  std::vector<float> out(count);
  switch (tensor.dtype) {
    case DType::kF32:
      std::memcpy(out.data(), tensor.data, count * sizeof(float));
      break;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(tensor.as<uint16_t>()[i]);
      break;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) out[i] = f16_to_float(tensor.as<uint16_t>()[i]);
      break;
    default:
      MEDLEY_CHECK(false, "to_float of a non-floating tensor:", to_string(tensor.dtype));
  }
  return out;
}

}  // namespace medley
