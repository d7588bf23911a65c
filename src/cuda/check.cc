#include "cuda/check.h"

#include "base/check.h"

namespace medley::cuda {

void check_cuda(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return;
  check_failed(call, file, line, cudaGetErrorString(error));
}

}  // namespace medley::cuda
