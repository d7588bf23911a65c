#pragma once

#include <cuda_runtime.h>

#include "cuda/check.h"

namespace medley::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  int cluster = 1;  // blocks of a cluster along x
  size_t shared_bytes = 0;
  // Whether the multiprocessor's memory is split with the most for shared memory, whatever one
  // block takes. Blocks of kernels that split it in different ways do not run on one at a time.
  bool max_carveout = false;
};

// Launches `kernel` as a programmatic dependent of its predecessor on the stream: it may start
// before that one ends, and therefore must execute griddepcontrol.wait in every block, even in one
// without work, before it reads anything that an earlier kernel writes (docs/performance.md).
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream,
            Args... args) {
  cudaLaunchAttribute attributes[3] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  int num_attributes = 1;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = shape.cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  if (shape.max_carveout) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attribute.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  MEDLEY_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

// Lets `kernel` use the most dynamic shared memory that a block may have beside its static use.
void allow_all_shared_memory(const void* kernel);
// The same for several, once if a static variable is initialised with it.
template <class... Kernels>
bool allow_all_shared_memory(Kernels... kernels) {
  (allow_all_shared_memory(reinterpret_cast<const void*>(kernels)), ...);
  return true;
}

}  // namespace medley::cuda
