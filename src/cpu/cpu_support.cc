#include "cpu/cpu_backend.h"

namespace medley {

Result<void> cpu_backend_supported() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2")) return unsupported("the CPU backend needs AVX2");
  if (!__builtin_cpu_supports("fma")) return unsupported("the CPU backend needs FMA");
  if (!__builtin_cpu_supports("bmi2")) return unsupported("the CPU backend needs BMI2");
  return {};
}

}  // namespace medley
