#pragma once

#include <chrono>
#include <cstdint>

namespace medley {

// Monotonic time in nanoseconds since an arbitrary start.
inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace medley
