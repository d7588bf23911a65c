#include "cpu/gemm.h"

#include <immintrin.h>

#include <algorithm>
#include <vector>

#include "cpu/parallel.h"

namespace medley::cpu {
namespace {

constexpr int kMaxRowBlock = 6;
constexpr int64_t kPanelsPerItem = 8;

inline __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load8(const uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// kRows rows by kPanels panels of 16, k ascending. `width` is the distance between the panel's
// k-rows: 16, or less in the last panel, where the lanes beyond it hold values that nobody reads.
template <class T, int kRows, int kPanels>
void micro_kernel(const T* panel, int64_t width, int64_t cols, const float* const* x,
                  float* const* out, bool accumulate) {
  __m256 acc[kRows][2 * kPanels];
  const float* xr[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    xr[r] = x[r];
#pragma GCC unroll 8
    for (int64_t j = 0; j < int64_t{2} * kPanels; ++j) {
      acc[r][j] = accumulate ? _mm256_loadu_ps(out[r] + 8 * j) : _mm256_setzero_ps();
    }
  }
  const int64_t panel_stride = kPanelWidth * cols;
  for (int64_t k = 0; k < cols; ++k) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      const T* w = panel + p * panel_stride + k * width;
      const __m256 w0 = load8(w);
      const __m256 w1 = load8(w + 8);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m256 xk = _mm256_broadcast_ss(xr[r] + k);
        acc[r][2 * p] = _mm256_fmadd_ps(xk, w0, acc[r][2 * p]);
        acc[r][2 * p + 1] = _mm256_fmadd_ps(xk, w1, acc[r][2 * p + 1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int64_t j = 0; j < int64_t{2} * kPanels; ++j) _mm256_storeu_ps(out[r] + 8 * j, acc[r][j]);
  }
}

// Panels [begin, end), all of them 16 wide, for kRows rows. Few rows take several panels at once,
// to keep enough independent accumulators in flight.
template <class T, int kRows>
void full_panels(const T* data, int64_t begin, int64_t end, int64_t cols, const float* const* x,
                 float* const* out, bool accumulate) {
  constexpr int kPanels = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;
  int64_t p = begin;
  float* at[kRows];
  const auto move_to = [&](int64_t panel) {
    for (int r = 0; r < kRows; ++r) at[r] = out[r] + panel * kPanelWidth;
    return data + panel * kPanelWidth * cols;
  };
  for (; p + kPanels <= end; p += kPanels) {
    micro_kernel<T, kRows, kPanels>(move_to(p), kPanelWidth, cols, x, at, accumulate);
  }
  for (; p < end; ++p) {
    micro_kernel<T, kRows, 1>(move_to(p), kPanelWidth, cols, x, at, accumulate);
  }
}

template <class T, int kRows>
void tail_panel(const T* data, int64_t panel, int64_t width, int64_t cols, const float* const* x,
                float* const* out, bool accumulate) {
  float tile[kRows][kPanelWidth] = {};
  float* at[kRows];
  const int64_t first = panel * kPanelWidth;
  for (int r = 0; r < kRows; ++r) {
    at[r] = tile[r];
    if (accumulate) std::copy_n(out[r] + first, width, tile[r]);
  }
  micro_kernel<T, kRows, 1>(data + first * cols, width, cols, x, at, accumulate);
  for (int r = 0; r < kRows; ++r) std::copy_n(tile[r], width, out[r] + first);
}

template <class T, int kRows>
void row_block(const GemmProblem& problem, int64_t begin, int64_t end, int row) {
  const PackedMatrix& weight = *problem.weight;
  const T* data = static_cast<const T*>(weight.data.data());
  const int64_t full = std::min(end, weight.rows / kPanelWidth);
  const float* const* x = problem.x + row;
  float* const* out = problem.out + row;
  full_panels<T, kRows>(data, begin, full, weight.cols, x, out, problem.accumulate);
  if (full < end) {
    tail_panel<T, kRows>(data, full, weight.rows % kPanelWidth, weight.cols, x, out,
                         problem.accumulate);
  }
}

template <class T>
void panel_range(const GemmProblem& problem, int64_t begin, int64_t end) {
  int row = 0;
  for (; row + kMaxRowBlock <= problem.num_rows; row += kMaxRowBlock) {
    row_block<T, kMaxRowBlock>(problem, begin, end, row);
  }
  switch (problem.num_rows - row) {
    case 5:
      return row_block<T, 5>(problem, begin, end, row);
    case 4:
      return row_block<T, 4>(problem, begin, end, row);
    case 3:
      return row_block<T, 3>(problem, begin, end, row);
    case 2:
      return row_block<T, 2>(problem, begin, end, row);
    case 1:
      return row_block<T, 1>(problem, begin, end, row);
    default:
      return;
  }
}

void run_panels(const GemmProblem& problem, int64_t begin, int64_t end) {
  if (problem.weight->dtype == DType::kBF16) {
    panel_range<uint16_t>(problem, begin, end);
  } else {
    panel_range<float>(problem, begin, end);
  }
}

int64_t num_items(const GemmProblem& problem) {
  return (problem.weight->num_panels() + kPanelsPerItem - 1) / kPanelsPerItem;
}

template <class T>
void pack_panel(std::span<const MatrixView> parts, int64_t first_row, PackedMatrix& matrix) {
  const int64_t width = std::min<int64_t>(kPanelWidth, matrix.rows - first_row);
  T* panel = static_cast<T*>(matrix.data.data()) + first_row * matrix.cols;
  std::vector<float> row(matrix.cols);
  for (int64_t i = 0; i < width; ++i) {
    int64_t local = first_row + i;
    size_t part = 0;
    while (local >= parts[part].rows) local -= parts[part++].rows;
    row_to_float(parts[part], local, row.data());
    for (int64_t k = 0; k < matrix.cols; ++k) {
      if constexpr (std::is_same_v<T, float>) {
        panel[k * width + i] = row[k];
      } else {
        panel[k * width + i] = float_to_bf16(row[k]);
      }
    }
  }
}

}  // namespace

void gemm(const GemmProblem& problem) { run_panels(problem, 0, problem.weight->num_panels()); }

void gemm(std::span<const GemmProblem> problems, ThreadPool& pool) {
  int64_t items = 0;
  int64_t work = 0;
  for (const GemmProblem& p : problems) {
    items += num_items(p);
    work += p.weight->rows * p.weight->cols * p.num_rows;
  }
  const auto run_item = [&](int64_t item) {
    const GemmProblem* p = problems.data();
    while (item >= num_items(*p)) item -= num_items(*p++);
    const int64_t begin = item * kPanelsPerItem;
    run_panels(*p, begin, std::min(begin + kPanelsPerItem, p->weight->num_panels()));
  };
  parallel_items(pool, items, work, run_item);
}

PackedMatrix pack_matrix(std::span<const MatrixView> parts, bool to_bf16, ThreadPool* pool) {
  PackedMatrix matrix;
  matrix.dtype = DType::kBF16;
  for (const MatrixView& part : parts) {
    MEDLEY_CHECK_EQ(part.cols, parts[0].cols);
    matrix.rows += part.rows;
    matrix.cols = part.cols;
    const bool exact = part.format == WeightFormat::kMxfp4 || part.dtype == DType::kBF16;
    if (!exact && !to_bf16) matrix.dtype = DType::kF32;
  }
  matrix.data = AlignedBuffer((matrix.rows * matrix.cols + kPanelWidth) * size_of(matrix.dtype));
  const auto pack = [&](int64_t panel) {
    if (matrix.dtype == DType::kBF16) {
      pack_panel<uint16_t>(parts, panel * kPanelWidth, matrix);
    } else {
      pack_panel<float>(parts, panel * kPanelWidth, matrix);
    }
  };
  if (pool != nullptr) {
    pool->parallel_for(matrix.num_panels(), std::ref(pack));
  } else {
    for (int64_t p = 0; p < matrix.num_panels(); ++p) pack(p);
  }
  return matrix;
}

}  // namespace medley::cpu
