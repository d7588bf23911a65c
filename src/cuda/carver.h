#pragma once

#include <cstddef>

namespace medley::cuda {

// Hands out aligned pieces of one allocation; with a null base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(size_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset_);
    offset_ += (count * sizeof(T) + 255) / 256 * 256;
    return piece;
  }
  size_t num_bytes() const { return offset_; }

 private:
  std::byte* base_;
  size_t offset_ = 0;
};

}  // namespace medley::cuda
