#pragma once

#include <immintrin.h>

#include <cstdint>

#include "tensor/dtype.h"

// Elementwise helpers and reductions in a fixed order: the order depends on the length alone.
namespace medley::cpu {

inline void widen(const uint16_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_float(in[i]);
}

inline void round_to_bf16(const float* in, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = float_to_bf16(in[i]);
}

inline float round_to_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }

// Elements [offset, offset + n) of `base`, whose type is float32 or bfloat16, as float32: in place
// where they have that type already, else in `tmp`.
inline const float* load_row(const void* base, DType dtype, int64_t offset, int64_t n, float* tmp) {
  if (dtype == DType::kF32) return static_cast<const float*>(base) + offset;
  widen(static_cast<const uint16_t*>(base) + offset, tmp, n);
  return tmp;
}

inline void store_row(const float* in, void* base, DType dtype, int64_t offset, int64_t n) {
  if (dtype == DType::kF32) {
    float* out = static_cast<float*>(base) + offset;
    for (int64_t i = 0; i < n; ++i) out[i] = in[i];
  } else {
    round_to_bf16(in, static_cast<uint16_t*>(base) + offset, n);
  }
}

// Lanes 0..7 hold eight partial sums, added as a tree; the tail follows in order.
inline float dot(const float* a, const float* b, int64_t n) {
  __m256 sum = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    sum = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), sum);
  }
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  half = _mm_add_ss(half, _mm_movehdup_ps(half));
  float total = _mm_cvtss_f32(half);
  for (; i < n; ++i) total = __builtin_fmaf(a[i], b[i], total);
  return total;
}

// y += a * x.
inline void axpy(float a, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = __builtin_fmaf(a, x[i], y[i]);
}

}  // namespace medley::cpu
