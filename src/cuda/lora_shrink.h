#pragma once

#include "cuda/context.h"
#include "cuda/lora_shrink_kernel.h"

namespace medley::cuda {

// The layout of A over `in_size` columns; its rows do not matter to the kernel.
inline MatrixLayout lora_a_layout(int in_size) {
  return make_matrix_layout(StreamFormat::kBF16, kUnitRows, in_size);
}

// One warp per block of 32 columns, kMaxShrinkWarps at most. Keyed by the shape, as it decides the
// order of a sum.
LoraShrinkConfig select_lora_shrink(const MatrixLayout& layout);

struct LoraShrinkJob {
  RoutingView rows;
  const LoraEntry* lora = nullptr;  // (slots)
  const __nv_bfloat16* x = nullptr;
  int in_size = 0;
  int max_pairs = 0;  // of a launch
};

// For steps of more rows than dense_gemm shrinks itself. Enqueues s = scale * A x of every pair;
// returns where it will be: (pairs, kShrinkStride).
const __nv_bfloat16* run_lora_shrink(Context& context, const LoraShrinkJob& job, Stream& stream);

}  // namespace medley::cuda
