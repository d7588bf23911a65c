#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace medley::cpu {

// Owning host memory, 64-byte aligned and zero-filled. Movable only.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t num_bytes) : num_bytes_(num_bytes) {
    const size_t padded = (num_bytes + 63) / 64 * 64;
    if (padded == 0) return;
    data_ = std::aligned_alloc(64, padded);
    MEDLEY_CHECK(data_ != nullptr, "out of host memory");
    std::memset(data_, 0, padded);
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept { swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~AlignedBuffer() { std::free(data_); }

  void* data() { return data_; }
  const void* data() const { return data_; }
  size_t num_bytes() const { return num_bytes_; }

 private:
  void swap(AlignedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
  }

  void* data_ = nullptr;
  size_t num_bytes_ = 0;
};

// Memory that lives for the length of one op. reserve() keeps no contents, and allocates only when
// asked for more than ever before.
template <class T>
class Scratch {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  T* reserve(int64_t count) {
    const size_t num_bytes = static_cast<size_t>(count) * sizeof(T);
    if (num_bytes > buffer_.num_bytes()) buffer_ = AlignedBuffer(num_bytes);
    return static_cast<T*>(buffer_.data());
  }

 private:
  AlignedBuffer buffer_;
};

}  // namespace medley::cpu
