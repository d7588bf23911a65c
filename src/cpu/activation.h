#pragma once

#include <immintrin.h>

#include <algorithm>

#include "cpu/simd.h"
#include "spec/model_spec.h"

namespace medley::cpu {

// Eight elements of ActivationSpec's function.
inline __m256 activate8(const ActivationSpec& spec, __m256 gate, __m256 up) {
  const __m256 one = _mm256_set1_ps(1.0f);
  __m256 slope = _mm256_set1_ps(-1.0f);
  if (spec.kind == Activation::kClampedSwiGlu) {
    const __m256 limit = _mm256_set1_ps(spec.limit);
    gate = _mm256_min_ps(gate, limit);
    up = _mm256_max_ps(_mm256_min_ps(up, limit), _mm256_set1_ps(-spec.limit));
    up = _mm256_add_ps(up, one);
    slope = _mm256_set1_ps(-spec.alpha);
  }
  const __m256 denominator = _mm256_add_ps(one, exp8(_mm256_mul_ps(slope, gate)));
  return _mm256_mul_ps(_mm256_div_ps(gate, denominator), up);
}

// out[i] = act(gate[i], up[i]); see ActivationSpec. `out` may be `gate`.
inline void activate(const ActivationSpec& spec, const float* gate, const float* up, int64_t n,
                     float* out) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(out + i, activate8(spec, _mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
  }
  if (i == n) return;
  float tail[3][8] = {};
  std::copy_n(gate + i, n - i, tail[0]);
  std::copy_n(up + i, n - i, tail[1]);
  _mm256_storeu_ps(tail[2], activate8(spec, _mm256_loadu_ps(tail[0]), _mm256_loadu_ps(tail[1])));
  std::copy_n(tail[2], n - i, out + i);
}

}  // namespace medley::cpu
