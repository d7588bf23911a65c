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

inline double ms_between(int64_t from_ns, int64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) / 1e6;
}
inline double ms_since(int64_t start_ns) { return ms_between(start_ns, now_ns()); }

}  // namespace medley
