#include "cuda/stage_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace medley::cuda {
namespace {

constexpr int64_t kTileCols = 64;  // a tile of a few hundred rows stays in a core's cache

int64_t aligned(int64_t bytes) {
  return (bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
}

RowType row_type(const MatrixView& view) {
  if (view.format == WeightFormat::kMxfp4) return RowType::kMxfp4;
  switch (view.dtype) {
    case DType::kBF16:
      return RowType::kBF16;
    case DType::kF16:
      return RowType::kF16;
    case DType::kF32:
      return RowType::kF32;
    default:
      MEDLEY_CHECK(false, "not a floating dtype:", to_string(view.dtype));
  }
}

int64_t element_bytes(RowType type) { return type == RowType::kF32 ? 4 : 2; }

Result<void> check_scales(const uint8_t* scales, int64_t count, int64_t row) {
  const uint8_t largest = *std::max_element(scales, scales + count);
  if (largest <= kMaxScaleByte) return {};
  const auto block = std::find(scales, scales + count, largest) - scales;
  if (largest == 255) {
    return invalid_argument(
        fmt::format("row {}, block {}: the E8M0 scale is 255 (NaN), expected at most {}", row,
                    block, kMaxScaleByte));
  }
  return unsupported(
      fmt::format("row {}, block {}: E8M0 scales up to {} (2^{}) are implemented, found {}", row,
                  block, kMaxScaleByte, kMaxScaleByte - 127, largest));
}

Result<void> stage_mxfp4(const StagedLayout& layout, std::span<const SourceRow> rows,
                         uint8_t* out) {
  uint8_t* scales = out + rows.size() * layout.pitch;
  for (const SourceRow& from : rows) {
    if (from.matrix == nullptr) {
      std::memset(out, 0, layout.pitch);
      std::memset(scales, kPaddingScale, layout.scale_pitch);
    } else {
      const MatrixView& view = *from.matrix;
      const uint8_t* row_scales = view.scales + from.row * view.scale_row_stride;
      MEDLEY_TRY(check_scales(row_scales, view.cols / 32, from.row));
      std::memcpy(out, static_cast<const uint8_t*>(view.data) + from.row * view.row_stride,
                  view.cols / 2);
      std::memcpy(scales, row_scales, view.cols / 32);
    }
    out += layout.pitch;
    scales += layout.scale_pitch;
  }
  return {};
}

void stage_contiguous(const StagedLayout& layout, std::span<const SourceRow> rows, uint8_t* out) {
  const int64_t size = element_bytes(layout.type);
  for (size_t r = 0; r < rows.size(); ++r) {
    const MatrixView* view = rows[r].matrix;
    if (view == nullptr) continue;
    std::memcpy(out + r * layout.pitch,
                static_cast<const uint8_t*>(view->data) + rows[r].row * view->row_stride * size,
                view->cols * size);
  }
}

// Column after column of a tile, so that transposed matrices are read in whole cache lines.
template <class T>
void stage_strided(const StagedLayout& layout, std::span<const SourceRow> rows, uint8_t* out) {
  for (int64_t begin = 0; begin < layout.cols; begin += kTileCols) {
    const int64_t end = std::min<int64_t>(begin + kTileCols, layout.cols);
    for (int64_t c = begin; c < end; ++c) {
      for (size_t r = 0; r < rows.size(); ++r) {
        const MatrixView* view = rows[r].matrix;
        if (view == nullptr) continue;
        const int64_t at = rows[r].row * view->row_stride + c * view->col_stride;
        reinterpret_cast<T*>(out + r * layout.pitch)[c] = static_cast<const T*>(view->data)[at];
      }
    }
  }
}

void stage_widened(const StagedLayout& layout, std::span<const SourceRow> rows, uint8_t* out) {
  for (size_t r = 0; r < rows.size(); ++r) {
    if (rows[r].matrix == nullptr) continue;
    row_to_float(*rows[r].matrix, rows[r].row, reinterpret_cast<float*>(out + r * layout.pitch));
  }
}

}  // namespace

RowType common_row_type(std::span<const MatrixView> matrices) {
  const RowType first = row_type(matrices.front());
  for (const MatrixView& matrix : matrices) {
    const RowType type = row_type(matrix);
    MEDLEY_CHECK_EQ(type == RowType::kMxfp4, first == RowType::kMxfp4);
    if (type != first) return RowType::kF32;
  }
  return first;
}

StagedLayout StagedLayout::of(RowType type, int64_t cols) {
  StagedLayout layout{.type = type, .cols = static_cast<int>(cols)};
  if (type == RowType::kMxfp4) {
    MEDLEY_CHECK_EQ(cols % 32, 0);
    layout.pitch = aligned(cols / 2);
    layout.scale_pitch = aligned(cols / 32);
  } else {
    layout.pitch = aligned(cols * element_bytes(type));
  }
  return layout;
}

StagedRows StagedLayout::rows_at(const uint8_t* buffer, int64_t rows) const {
  return {.type = type,
          .rows = buffer,
          .pitch = pitch,
          .scales = buffer + rows * pitch,
          .scale_pitch = scale_pitch,
          .cols = cols};
}

Result<void> stage_rows(const StagedLayout& layout, std::span<const SourceRow> rows, uint8_t* out) {
  if (layout.type == RowType::kMxfp4) return stage_mxfp4(layout, rows, out);
  bool contiguous = true;
  bool same_type = true;
  for (size_t r = 0; r < rows.size(); ++r) {
    const MatrixView* view = rows[r].matrix;
    if (view == nullptr) {
      std::memset(out + r * layout.pitch, 0, layout.pitch);
    } else {
      contiguous &= view->col_stride == 1;
      same_type &= row_type(*view) == layout.type;
    }
  }
  if (!same_type) {
    MEDLEY_CHECK(layout.type == RowType::kF32);
    stage_widened(layout, rows, out);
  } else if (contiguous) {
    stage_contiguous(layout, rows, out);
  } else if (layout.type == RowType::kF32) {
    stage_strided<uint32_t>(layout, rows, out);
  } else {
    stage_strided<uint16_t>(layout, rows, out);
  }
  return {};
}

}  // namespace medley::cuda
