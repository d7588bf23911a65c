#include "backend/weights.h"

#include <array>
#include <cmath>
#include <cstring>

namespace medley {
namespace {

float load(DType dtype, const void* data, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kBF16:
      return bf16_to_float(static_cast<const uint16_t*>(data)[index]);
    case DType::kF16:
      return f16_to_float(static_cast<const uint16_t*>(data)[index]);
    default:
      MEDLEY_CHECK(false, "not a floating dtype:", to_string(dtype));
  }
}

// OCP MX v1.0, E2M1.
constexpr std::array<float, 16> kE2M1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

}  // namespace

float element(const MatrixView& view, int64_t row, int64_t col) {
  return load(view.dtype, view.data, row * view.row_stride + col * view.col_stride);
}

float element(const VectorView& view, int64_t i) {
  return load(view.dtype, view.data, i * view.stride);
}

void row_to_float(const MatrixView& view, int64_t row, float* out) {
  if (view.format == WeightFormat::kFloat) {
    for (int64_t c = 0; c < view.cols; ++c) out[c] = element(view, row, c);
    return;
  }
  const auto* blocks = static_cast<const uint8_t*>(view.data) + row * view.row_stride;
  const uint8_t* scales = view.scales + row * view.scale_row_stride;
  for (int64_t c = 0; c < view.cols; c += 2) {
    const float scale = std::ldexp(1.0f, scales[c / 32] - 127);
    out[c] = kE2M1[blocks[c / 2] & 0xf] * scale;
    out[c + 1] = kE2M1[blocks[c / 2] >> 4] * scale;
  }
}

}  // namespace medley
