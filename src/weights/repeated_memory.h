#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/error.h"

namespace medley {

// Read-only host memory that repeats a piece of kPeriod bytes: one file in memory, mapped again and
// again, so that it costs the piece however long it is. Movable; address and content never change.
class RepeatedMemory {
 public:
  // A prime number of pages: rows of a matrix that fill whole pages repeat as late as they can.
  static constexpr size_t kPeriod = size_t{4099} * 4096;

  // At least `num_bytes` long; `fill` writes the piece. kUnavailable where the system refuses.
  static Result<RepeatedMemory> make(size_t num_bytes,
                                     const std::function<void(std::span<std::byte>)>& fill);

  RepeatedMemory(RepeatedMemory&& other) noexcept;
  RepeatedMemory& operator=(RepeatedMemory&& other) noexcept;
  ~RepeatedMemory();

  const std::byte* data() const { return data_; }

 private:
  RepeatedMemory() = default;

  std::byte* data_ = nullptr;
  size_t num_bytes_ = 0;
};

}  // namespace medley
