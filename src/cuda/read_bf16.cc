#include "cuda/read_bf16.h"

#include <immintrin.h>

#include <cstring>

// Compiled for AVX2 and F16C, which every host of these GPUs has.

namespace medley::cuda {
namespace {

constexpr int kLanes = 8;

void round_lanes(__m256 values, uint16_t* out) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  const __m128i packed =
      _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), packed);
}

void read_row(const uint16_t* in, int count, uint16_t* out) {
  if (count == 32) {
    std::memcpy(out, in, 64);
  } else {
    std::memcpy(out, in, count * sizeof(uint16_t));
  }
}

void read_row(const float* in, int count, uint16_t* out) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) round_lanes(_mm256_loadu_ps(in + i), out + i);
  for (; i < count; ++i) out[i] = float_to_bf16(in[i]);
}

void read_half_row(const uint16_t* in, int count, uint16_t* out) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    round_lanes(_mm256_cvtph_ps(half), out + i);
  }
  for (; i < count; ++i) out[i] = float_to_bf16(f16_to_float(in[i]));
}

}  // namespace

void read_bf16(const MatrixView& view, int64_t row, int64_t col, int count, uint16_t* out) {
  const int64_t stride = view.col_stride;
  const int64_t first = row * view.row_stride + col * stride;
  switch (view.dtype) {
    case DType::kBF16: {
      const uint16_t* in = static_cast<const uint16_t*>(view.data) + first;
      if (stride == 1) return read_row(in, count, out);
      for (int i = 0; i < count; ++i) out[i] = in[i * stride];
      return;
    }
    case DType::kF16: {
      const uint16_t* in = static_cast<const uint16_t*>(view.data) + first;
      if (stride == 1) return read_half_row(in, count, out);
      for (int i = 0; i < count; ++i) out[i] = float_to_bf16(_cvtsh_ss(in[i * stride]));
      return;
    }
    case DType::kF32: {
      const float* in = static_cast<const float*>(view.data) + first;
      if (stride == 1) return read_row(in, count, out);
      for (int i = 0; i < count; ++i) out[i] = float_to_bf16(in[i * stride]);
      return;
    }
    default:
      MEDLEY_CHECK(false, "not a floating dtype:", to_string(view.dtype));
  }
}

void interleave_pairs(const uint16_t* low, const uint16_t* high, uint8_t* out) {
  const auto* low_words = reinterpret_cast<const __m128i*>(low);
  const auto* high_words = reinterpret_cast<const __m128i*>(high);
  auto* words = reinterpret_cast<__m128i*>(out);
  for (int half = 0; half < 2; ++half) {
    const __m128i l = _mm_loadu_si128(low_words + half);
    const __m128i h = _mm_loadu_si128(high_words + half);
    _mm_storeu_si128(words + 2 * half, _mm_unpacklo_epi32(l, h));
    _mm_storeu_si128(words + 2 * half + 1, _mm_unpackhi_epi32(l, h));
  }
}

}  // namespace medley::cuda
