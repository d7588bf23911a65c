#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace medley::testing {

// A predecessor at its worst: triggers its dependents at once, sleeps 100 microseconds, then
// copies.
void launch_slow_copy(void* target, const void* source, size_t num_bytes, cudaStream_t stream);

// Keeps `num_sms` multiprocessors to itself for some milliseconds, from now on.
void launch_hog(int num_sms, int milliseconds, cudaStream_t stream);

}  // namespace medley::testing
