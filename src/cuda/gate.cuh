#pragma once

#include "cuda/expert_gemm_kernel.h"

namespace medley::cuda {

__device__ __forceinline__ float gate_times_up(const GateParams& p, float gate, float up) {
  if (p.activation == GateActivation::kSwiGlu) {
    return __fdividef(gate * up, 1.0f + __expf(-gate));
  }
  gate = fminf(gate, p.limit);
  up = fminf(fmaxf(up, -p.limit), p.limit);
  return __fdividef((up + 1.0f) * gate, 1.0f + __expf(-p.alpha * gate));
}

}  // namespace medley::cuda
