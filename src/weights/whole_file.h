#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "weights/file_memory.h"

namespace medley {

// A whole file in memory, read-only: mapped, or copied to memory of its own. Movable. Errors name
// the file: kNotFound, or kInvalidArgument for one that is no regular file or can't be read.
class WholeFile {
 public:
  static Result<WholeFile> map(const std::string& path);
  // By several threads. `on_bytes`, if any, is handed the bytes in order, piece by piece, on a
  // thread of its own, while others are being read; it has had all of them when this returns
  // without an error.
  using OnBytes = std::function<void(std::span<const std::byte>)>;
  static Result<WholeFile> copy(const std::string& path, const OnBytes& on_bytes);

  WholeFile(WholeFile&& other) noexcept
      : mapped_(std::exchange(other.mapped_, nullptr)),
        copy_(std::move(other.copy_)),
        size_(std::exchange(other.size_, 0)) {}
  WholeFile& operator=(WholeFile&& other) noexcept {
    std::swap(mapped_, other.mapped_);
    std::swap(copy_, other.copy_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~WholeFile();

  const std::byte* data() const {
    return mapped_ != nullptr ? static_cast<const std::byte*>(mapped_) : copy_.data();
  }
  size_t size() const { return size_; }

 private:
  WholeFile() = default;

  void* mapped_ = nullptr;
  FileMemory copy_;
  size_t size_ = 0;
};

}  // namespace medley
