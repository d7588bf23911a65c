#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>

namespace medley {

// How many threads share the work of loading something while the process serves: most cores, but
// not all, and no more than memory bandwidth needs.
inline int num_loading_threads() {
  constexpr int kMost = 12;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) - 2, 1, kMost);
}

// Hashing and tokenising share a pool of threads (that of Rust's rayon), which would take every
// core, those of the engine and of the server too. To be called first in main().
inline void limit_shared_threads() {
  const int num_threads = std::max(1, num_loading_threads() * 2 / 3);
  setenv("RAYON_NUM_THREADS", std::to_string(num_threads).c_str(), /*overwrite=*/0);
}

}  // namespace medley
