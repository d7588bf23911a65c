#include "cuda/launch.h"

namespace medley::cuda {

void allow_all_shared_memory(const void* kernel) {
  cudaFuncAttributes attributes = {};
  MEDLEY_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  int device = 0;
  int limit = 0;
  MEDLEY_CUDA_CHECK(cudaGetDevice(&device));
  MEDLEY_CUDA_CHECK(
      cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  MEDLEY_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         limit - static_cast<int>(attributes.sharedSizeBytes)));
}

}  // namespace medley::cuda
