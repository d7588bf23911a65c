#include "cuda/pack_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace medley::cuda {
namespace {

constexpr int kGroups = 8;    // row groups of a unit: rows g and g + 8
constexpr int kQuads = 4;     // lanes of a group
constexpr int kLaneCols = 8;  // columns of 32 that a lane holds

Result<uint8_t> biased_scale(uint8_t exponent) {
  if (exponent == 255) {
    return invalid_argument("MXFP4 scale: expected a power of two, found 255 (NaN)");
  }
  if (exponent > kMaxScaleByte) {
    return unsupported(fmt::format("MXFP4 scale: exponents up to 2^{} are implemented, found 2^{}",
                                   kMaxScaleByte - 127, exponent - 127));
  }
  return static_cast<uint8_t>(exponent + kScaleBias);
}

uint32_t codes_word(const SourceRow& source, int64_t col) {
  if (source.matrix == nullptr || col >= source.matrix->cols) return 0;
  const uint8_t* bytes = static_cast<const uint8_t*>(source.matrix->data) +
                         source.row * source.matrix->row_stride + col / 2;
  std::array<uint8_t, 8> codes;
  for (size_t i = 0; i < 4; ++i) {
    codes[2 * i] = bytes[i] & 0xf;
    codes[2 * i + 1] = bytes[i] >> 4;
  }
  return encode_e2m1(codes);
}

Result<void> pack_mxfp4_unit(const MatrixLayout& layout, const RowSource& source, int unit,
                             uint8_t* out) {
  const int64_t num_blocks = int64_t{layout.num_stages} * layout.stage_blocks;
  for (int64_t block = 0; block < num_blocks; ++block) {
    uint8_t* stage = out + block / layout.stage_blocks * layout.stage_bytes;
    const int64_t index = block % layout.stage_blocks;
    uint8_t* codes = stage + index * kCodeBytes;
    uint8_t* scales = stage + int64_t{layout.stage_blocks} * kCodeBytes + index * kScaleBytes;
    for (int row = 0; row < kUnitRows; ++row) {
      const SourceRow from = source(unit, row);
      const int64_t group = row % kGroups;
      const int64_t low_or_high = row / kGroups;
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t col = block * 64 + half * 32;
        const int64_t place = 2 * half + low_or_high;
        for (int64_t q = 0; q < kQuads; ++q) {
          const uint32_t word = codes_word(from, col + q * kLaneCols);
          std::memcpy(codes + (group * kQuads + q) * 16 + place * 4, &word, 4);
        }
        uint8_t scale = 1;
        if (from.matrix != nullptr && col < from.matrix->cols) {
          MEDLEY_TRY_ASSIGN(
              scale, biased_scale(
                         from.matrix->scales[from.row * from.matrix->scale_row_stride + col / 32]));
        }
        scales[group * 4 + place] = scale;
      }
    }
  }
  return {};
}

void pack_bf16_unit(const MatrixLayout& layout, const RowSource& source, int unit, uint8_t* out) {
  std::vector<float> values;
  std::vector<uint16_t> row_bits(layout.padded_cols);
  for (int64_t row = 0; row < kUnitRows; ++row) {
    const SourceRow from = source(unit, static_cast<int>(row));
    std::fill(row_bits.begin(), row_bits.end(), 0);
    if (from.matrix != nullptr) {
      values.resize(from.matrix->cols);
      row_to_float(*from.matrix, from.row, values.data());
      for (size_t c = 0; c < values.size(); ++c) row_bits[c] = float_to_bf16(values[c]);
    }
    for (int64_t block = 0; block < layout.padded_cols / 32; ++block) {
      uint8_t* bytes = out + block * 1024 + row / kGroups * 512;
      std::memcpy(bytes + row % kGroups * kQuads * 16, row_bits.data() + block * 32, 64);
    }
  }
}

int largest_divisor(int value, int limit) {
  int divisor = std::min(value, limit);
  while (value % divisor != 0) --divisor;
  return divisor;
}

}  // namespace

MatrixLayout make_matrix_layout(StreamFormat format, int64_t rows, int64_t cols) {
  MEDLEY_CHECK_GT(rows, 0);
  MEDLEY_CHECK_GT(cols, 0);
  const int width = block_cols(format);
  const int blocks = static_cast<int>((cols + width - 1) / width);
  // Five blocks divide GPT-OSS's 45; four keep a bfloat16 stage at 4 KiB.
  const int stage_blocks = largest_divisor(blocks, format == StreamFormat::kMxfp4 ? 5 : 4);
  return {.format = format,
          .num_units = static_cast<int>((rows + kUnitRows - 1) / kUnitRows),
          .padded_cols = blocks * width,
          .stage_blocks = stage_blocks,
          .num_stages = blocks / stage_blocks,
          .stage_bytes = stage_blocks * block_bytes(format),
          .unit_bytes = static_cast<uint32_t>(blocks * block_bytes(format))};
}

Result<void> pack_matrix(const MatrixLayout& layout, const RowSource& source, uint8_t* out) {
  for (int unit = 0; unit < layout.num_units; ++unit) {
    uint8_t* unit_out = out + static_cast<size_t>(unit) * layout.unit_bytes;
    if (layout.format == StreamFormat::kMxfp4) {
      MEDLEY_TRY(pack_mxfp4_unit(layout, source, unit, unit_out));
    } else {
      pack_bf16_unit(layout, source, unit, unit_out);
    }
  }
  return {};
}

}  // namespace medley::cuda
