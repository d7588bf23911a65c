#pragma once

#include <cuda_runtime_api.h>

namespace medley::cuda {

// A failing call is a bug, and aborts with CUDA's own text, or a fault of the device: that one is
// remembered (fault.h), and no call does anything from then on.
void check_cuda(cudaError_t error, const char* call, const char* file, int line);

}  // namespace medley::cuda

#define MEDLEY_CUDA_CHECK(call) ::medley::cuda::check_cuda((call), #call, __FILE__, __LINE__)
