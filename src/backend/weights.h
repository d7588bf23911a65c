#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/lora_site.h"
#include "spec/model_spec.h"
#include "tensor/tensor.h"

namespace medley {

// A matrix (rows, cols) somewhere in host memory, as the checkpoint or adapter file lays it out;
// nothing is copied until a backend packs it. Strides let transposed, interleaved and expert-inner
// layouts pass without a copy.
//   kFloat: element (r, c) is data[r * row_stride + c * col_stride], strides in elements of
//   `dtype`. kMxfp4: row r is cols/2 bytes at data + r * row_stride; its cols/32 scales at scales +
//   r * scale_row_stride; both
//           strides in bytes; col_stride unused.
struct MatrixView {
  WeightFormat format = WeightFormat::kFloat;
  DType dtype = DType::kBF16;
  const void* data = nullptr;
  const uint8_t* scales = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
  int64_t scale_row_stride = 0;
};

// Element i is data[i * stride].
struct VectorView {
  DType dtype = DType::kBF16;
  const void* data = nullptr;
  int64_t size = 0;
  int64_t stride = 1;
};

// Widens row `row` to float32 (out has view.cols elements); MXFP4 is dequantised exactly.
void row_to_float(const MatrixView& view, int64_t row, float* out);
float element(const MatrixView& view, int64_t row, int64_t col);  // kFloat only
float element(const VectorView& view, int64_t i);

// A dense projection: parts are stacked along the output (q, k, v; or gate, up). `biases` is empty
// or one per part.
struct LinearWeights {
  std::vector<MatrixView> parts;
  std::vector<VectorView> biases;
  bool gate_up = false;  // parts gate and up of a DenseMlp, which joins them row by row
};

// One entry per expert in each list; bias lists are empty where the model has none.
struct ExpertGateUpWeights {
  std::vector<MatrixView> gate, up;  // (I, H) each
  std::vector<VectorView> gate_bias, up_bias;
};
struct ExpertDownWeights {
  std::vector<MatrixView> down;  // (H, I)
  std::vector<VectorView> bias;
};

// One low-rank pair of a module: output rows [row_begin, row_end) += B diag(scale) A x.
// Dense modules have one matrix in `a` and `b`; expert modules one per expert, or one shared by all
// experts.
struct LoraPair {
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int rank = 0;
  std::vector<MatrixView> a;  // (rank, in)
  std::vector<MatrixView> b;  // (row_end - row_begin, rank)
  std::vector<float> scale;   // rank entries
  // Of b: its rows come gate, up, gate, up, ... instead of all of gate, then all of up.
  bool b_interleaved = false;

  // Where in b the row `row_begin + row` of the module is.
  int64_t b_row(int64_t row) const {
    if (!b_interleaved) return row;
    const int64_t half = (row_end - row_begin) / 2;
    return row < half ? 2 * row : 2 * (row - half) + 1;
  }
};

// All pairs of one module of one layer; row ranges of pairs do not overlap.
struct LoraModuleWeights {
  LoraSite site;
  std::vector<LoraPair> pairs;
};

}  // namespace medley
