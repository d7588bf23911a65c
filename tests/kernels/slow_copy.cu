#include "slow_copy.h"

#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/primitives.cuh"

namespace medley::testing {

__global__ void slow_copy_kernel(char* target, const char* source, size_t num_bytes) {
  cuda::wait_for_predecessor();
  cuda::launch_dependents();
  for (int i = 0; i < 100; ++i) __nanosleep(1000);
  for (size_t i = threadIdx.x; i < num_bytes; i += blockDim.x) target[i] = source[i];
}

__global__ void hog_kernel(int milliseconds) {
  for (int i = 0; i < milliseconds * 1000; ++i) __nanosleep(1000);
}

void launch_hog(int num_sms, int milliseconds, cudaStream_t stream) {
  constexpr int kSharedBytes = 200 * 1024;  // leaves no room for a second block
  MEDLEY_CUDA_CHECK(
      cudaFuncSetAttribute(hog_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  hog_kernel<<<num_sms, 32, kSharedBytes, stream>>>(milliseconds);
}

void launch_slow_copy(void* target, const void* source, size_t num_bytes, cudaStream_t stream) {
  cuda::launch(slow_copy_kernel, {.grid = dim3(1), .block = dim3(1024)}, stream,
               static_cast<char*>(target), static_cast<const char*>(source), num_bytes);
}

}  // namespace medley::testing
