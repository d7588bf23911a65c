#pragma once

#include <algorithm>
#include <cmath>

#include "spec/model_spec.h"

namespace medley::cpu {

// out[i] = act(gate[i], up[i]); see ActivationSpec. `out` may be `gate`.
inline void activate(const ActivationSpec& spec, const float* gate, const float* up, int64_t n,
                     float* out) {
  if (spec.kind == Activation::kSwiGlu) {
    for (int64_t i = 0; i < n; ++i) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const float g = std::min(gate[i], spec.limit);
    const float u = std::clamp(up[i], -spec.limit, spec.limit);
    out[i] = (u + 1.0f) * g / (1.0f + std::exp(-spec.alpha * g));
  }
}

}  // namespace medley::cpu
