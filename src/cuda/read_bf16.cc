#include "cuda/read_bf16.h"

#include <immintrin.h>

#include <cstring>

// Compiled for AVX2 and F16C, which every host of these GPUs has.

namespace medley::cuda {
namespace {

constexpr int kLanes = 8;
constexpr int kStreamed = 32;  // values of a cache line

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

struct Half {
  uint16_t bits;
};

inline void read_lanes(const uint16_t* in, uint16_t* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
}
inline void read_lanes(const float* in, uint16_t* out) { round_lanes(_mm256_loadu_ps(in), out); }
inline void read_lanes(const Half* in, uint16_t* out) {
  round_lanes(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in))), out);
}

inline uint16_t to_bf16(uint16_t bits) { return bits; }
inline uint16_t to_bf16(float value) { return float_to_bf16(value); }
inline uint16_t to_bf16(Half value) { return float_to_bf16(_cvtsh_ss(value.bits)); }

template <class T>
void read_row(const T* in, int64_t count, uint16_t* out) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) read_lanes(in + i, out + i);
  for (; i < count; ++i) out[i] = to_bf16(in[i]);
}

// 32 values past the caches, which would read each line first: what is packed is read by the
// device.
inline void stream_row(const uint16_t* in, uint16_t* out) {
  for (int i = 0; i < kStreamed; i += 2 * kLanes) {
    const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(out + i), values);
  }
}

template <class T>
void read_tile(const MatrixView& view, const Bf16Tile& tile, uint16_t* out, int64_t out_stride) {
  const int64_t stride = view.col_stride;
  const T* in = static_cast<const T*>(view.data) + tile.row * view.row_stride + tile.col * stride;
  for (int row = 0; row < tile.num_rows; ++row) {
    if (stride == 1 && tile.num_cols == kStreamed && out_stride == kStreamed) {
      alignas(64) uint16_t values[kStreamed];
      for (int i = 0; i < kStreamed; i += kLanes) read_lanes(in + i, values + i);
      stream_row(values, out);
    } else if (stride == 1) {
      read_row(in, tile.num_cols, out);
    } else {
      for (int64_t i = 0; i < tile.num_cols; ++i) out[i] = to_bf16(in[i * stride]);
    }
    in += view.row_stride;
    out += out_stride;
  }
}

// Eight rows of eight.
void transpose_block(const uint16_t* in, int64_t in_stride, uint16_t* out, int64_t out_stride) {
  __m128i r[8];
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i * in_stride));
  }
  __m128i pairs[8];
  for (size_t i = 0; i < 4; ++i) {
    pairs[i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);      // columns 0-3 of rows 2 i, 2 i + 1
    pairs[i + 4] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);  // columns 4-7
  }
  for (size_t half = 0; half < 2; ++half) {
    const __m128i* p = pairs + 4 * half;
    const __m128i low01 = _mm_unpacklo_epi32(p[0], p[1]);   // columns 0, 1 of rows 0-3
    const __m128i low23 = _mm_unpacklo_epi32(p[2], p[3]);   // of rows 4-7
    const __m128i high01 = _mm_unpackhi_epi32(p[0], p[1]);  // columns 2, 3
    const __m128i high23 = _mm_unpackhi_epi32(p[2], p[3]);
    const __m128i columns[4] = {_mm_unpacklo_epi64(low01, low23), _mm_unpackhi_epi64(low01, low23),
                                _mm_unpacklo_epi64(high01, high23),
                                _mm_unpackhi_epi64(high01, high23)};
    for (int i = 0; i < 4; ++i) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + (4 * half + i) * out_stride), columns[i]);
    }
  }
}

}  // namespace

void read_bf16_tile(const MatrixView& view, const Bf16Tile& tile, uint16_t* out,
                    int64_t out_stride) {
  switch (view.dtype) {
    case DType::kBF16:
      return read_tile<uint16_t>(view, tile, out, out_stride);
    case DType::kF16:
      return read_tile<Half>(view, tile, out, out_stride);
    case DType::kF32:
      return read_tile<float>(view, tile, out, out_stride);
    default:
      MEDLEY_CHECK(false, "not a floating dtype:", to_string(view.dtype));
  }
}

void read_bf16(const MatrixView& view, int64_t row, int64_t col, int64_t count, uint16_t* out) {
  read_bf16_tile(view, {.row = row, .col = col, .num_rows = 1, .num_cols = static_cast<int>(count)},
                 out, /*out_stride=*/0);
}

bool are_interleaved(const std::vector<MatrixView>& matrices) {
  const auto count = static_cast<int64_t>(matrices.size());
  if (count < 2) return false;
  const MatrixView& first = matrices[0];
  const auto size = static_cast<int64_t>(size_of(first.dtype));
  for (int64_t i = 0; i < count; ++i) {
    const MatrixView& matrix = matrices[i];
    if (matrix.dtype != first.dtype || matrix.rows != first.rows || matrix.cols != first.cols ||
        matrix.rows == 0 || matrix.row_stride != first.row_stride || matrix.col_stride != count ||
        static_cast<const char*>(matrix.data) != static_cast<const char*>(first.data) + i * size) {
      return false;
    }
  }
  return true;
}

void transpose(const uint16_t* in, int rows, int cols, uint16_t* out) {
  const int whole_rows = rows / 8 * 8;
  const int whole_cols = cols / 8 * 8;
  for (int row = 0; row < whole_rows; row += 8) {
    for (int col = 0; col < whole_cols; col += 8) {
      transpose_block(in + int64_t{row} * cols + col, cols, out + int64_t{col} * rows + row, rows);
    }
  }
  for (int row = 0; row < rows; ++row) {
    for (int col = row < whole_rows ? whole_cols : 0; col < cols; ++col) {
      out[int64_t{col} * rows + row] = in[int64_t{row} * cols + col];
    }
  }
}

void interleave_pairs(const uint16_t* low, const uint16_t* high, uint8_t* out) {
  const auto* low_words = reinterpret_cast<const __m128i*>(low);
  const auto* high_words = reinterpret_cast<const __m128i*>(high);
  auto* words = reinterpret_cast<__m128i*>(out);
  for (size_t half = 0; half < 2; ++half) {
    const __m128i l = _mm_loadu_si128(low_words + half);
    const __m128i h = _mm_loadu_si128(high_words + half);
    _mm_stream_si128(words + 2 * half, _mm_unpacklo_epi32(l, h));
    _mm_stream_si128(words + 2 * half + 1, _mm_unpackhi_epi32(l, h));
  }
}

void finish_streaming() { _mm_sfence(); }

}  // namespace medley::cuda
