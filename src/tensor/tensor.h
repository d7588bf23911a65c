#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace medley {

// Up to four dimensions, row-major, no strides: data[i0][i1]...
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::vector<int64_t>(dims)) {}
  explicit Shape(const std::vector<int64_t>& dims);

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i]; }
  int64_t num_elements() const;
  std::string to_string() const;  // "(32, 2880)"
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// Non-owning view of memory on the host or on a device; who holds it knows which. Copyable, two
// words and a shape.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  size_t num_bytes() const { return shape.num_elements() * size_of(dtype); }
};

struct ConstTensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  ConstTensorView() = default;
  ConstTensorView(const void* d, DType t, Shape s) : data(d), dtype(t), shape(s) {}
  ConstTensorView(const TensorView& v) : data(v.data), dtype(v.dtype), shape(v.shape) {}  // NOLINT

  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
  size_t num_bytes() const { return shape.num_elements() * size_of(dtype); }
};

// Owning host tensor, 64-byte aligned, zero-filled. Movable only.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, Shape shape);
  HostTensor(HostTensor&& other) noexcept;
  HostTensor& operator=(HostTensor&& other) noexcept;
  ~HostTensor();

  TensorView view() { return view_; }
  ConstTensorView view() const { return view_; }
  DType dtype() const { return view_.dtype; }
  const Shape& shape() const { return view_.shape; }
  template <class T>
  T* as() {
    return view_.as<T>();
  }
  template <class T>
  const T* as() const {
    return view_.as<T>();
  }

 private:
  TensorView view_;
};

// Widens any floating tensor (float32, bfloat16, float16) to float32, element by element.
std::vector<float> to_float(const ConstTensorView& tensor);

}  // namespace medley
