#pragma once

#include <cstddef>
#include <utility>

namespace medley {

// Memory to read a whole file into: anonymous pages, large ones where the system has them. The
// last few pieces that were given back are kept and used again, since making pages costs more than
// filling them: adapters come in files of one size, over and over. Movable. Thread-safe between
// objects.
class FileMemory {
 public:
  FileMemory() = default;
  FileMemory(FileMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}
  FileMemory& operator=(FileMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~FileMemory();

  // At least `num_bytes`, of any content; data() is null where the system has none.
  static FileMemory allocate(size_t num_bytes);

  std::byte* data() const { return data_; }
  size_t capacity() const { return capacity_; }

 private:
  FileMemory(std::byte* data, size_t capacity) : data_(data), capacity_(capacity) {}

  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace medley
