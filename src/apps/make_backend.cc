#include "apps/make_backend.h"

#include "base/log.h"
#include "cpu/cpu_backend.h"
#ifdef MEDLEY_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace medley::apps {
namespace {

Result<std::unique_ptr<Backend>> make_gpu_backend() {
#ifdef MEDLEY_CUDA
  return make_cuda_backend();
#else
  return unsupported("this medley was built without CUDA", "--device");
#endif
}

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const BackendFlags& flags) {
  if (flags.device != "cpu") {
    Result<std::unique_ptr<Backend>> gpu = make_gpu_backend();
    if (gpu.ok() || flags.device == "cuda") return gpu;
    log::info("{}: running on the CPU", gpu.error().message);
  }
  MEDLEY_TRY(cpu_backend_supported());
  return make_cpu_backend({.num_threads = flags.num_threads});
}

}  // namespace medley::apps
