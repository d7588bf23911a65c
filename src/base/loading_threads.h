#pragma once

#include <algorithm>
#include <thread>

namespace medley {

// How many threads share the work of loading something while the process serves: most cores, but
// not all, and no more than memory bandwidth needs.
inline int num_loading_threads() {
  constexpr int kMost = 12;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) - 2, 1, kMost);
}

}  // namespace medley
