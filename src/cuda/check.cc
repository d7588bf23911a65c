#include "cuda/check.h"

#include <fmt/format.h>

#include <atomic>

#include "base/check.h"
#include "cuda/fault.h"

namespace medley::cuda {
namespace {

std::atomic<cudaError_t> g_fault = cudaSuccess;

// Errors after which the context is lost (CUDA Runtime API, "Error handling").
bool is_fault(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorAssert:
      return true;
    default:
      return false;
  }
}

}  // namespace

void check_cuda(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return;
  if (!is_fault(error)) check_failed(call, file, line, cudaGetErrorString(error));
  cudaError_t none = cudaSuccess;
  g_fault.compare_exchange_strong(none, error);
}

Result<void> device_fault() {
  const cudaError_t fault = g_fault.load();
  if (fault == cudaSuccess) return {};
  return internal_error(fmt::format("the GPU has failed: {}", cudaGetErrorString(fault)));
}

}  // namespace medley::cuda
