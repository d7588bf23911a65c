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

inline float sum_lanes(__m256 v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  half = _mm_add_ss(half, _mm_movehdup_ps(half));
  return _mm_cvtss_f32(half);
}

// Lanes 0..7 hold eight partial sums, added as a tree; the tail follows in order.
inline float dot(const float* a, const float* b, int64_t n) {
  __m256 sum = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    sum = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), sum);
  }
  float total = sum_lanes(sum);
  for (; i < n; ++i) total = __builtin_fmaf(a[i], b[i], total);
  return total;
}

// e^x within 2 units in the last place for x in [-87, 88]; beyond, its value at the nearer end. The
// polynomial is that of Cephes' expf.
inline __m256 exp8(__m256 x) {
  const auto all = [](float value) { return _mm256_set1_ps(value); };
  x = _mm256_max_ps(_mm256_min_ps(x, all(88.0f)), all(-87.0f));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, all(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 in two parts, the first exact in few bits.
  __m256 r = _mm256_fnmadd_ps(n, all(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, all(-2.12194440e-4f), r);
  __m256 p = all(1.9875691500e-4f);
  for (const float c :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    p = _mm256_fmadd_ps(p, r, all(c));
  }
  p = _mm256_add_ps(_mm256_fmadd_ps(_mm256_mul_ps(r, r), p, r), all(1.0f));
  const __m256i exponent =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
}

// y += a * x.
inline void axpy(float a, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = __builtin_fmaf(a, x[i], y[i]);
}

}  // namespace medley::cpu
