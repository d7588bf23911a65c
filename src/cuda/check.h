#pragma once

#include <cuda_runtime_api.h>

namespace medley::cuda {

// Aborts with CUDA's own text: a failing call is a bug or a device fault.
void check_cuda(cudaError_t error, const char* call, const char* file, int line);

}  // namespace medley::cuda

#define MEDLEY_CUDA_CHECK(call) ::medley::cuda::check_cuda((call), #call, __FILE__, __LINE__)
