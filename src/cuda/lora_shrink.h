#pragma once

#include "cuda/lora_shrink_kernel.h"

namespace medley::cuda {

// The layout of A over `in_size` columns; its rows do not matter to the kernel.
inline MatrixLayout lora_a_layout(int in_size) {
  return make_matrix_layout(StreamFormat::kBF16, kUnitRows, in_size);
}

// One warp per block of 32 columns, kMaxShrinkWarps at most.
LoraShrinkConfig select_lora_shrink(const MatrixLayout& layout);

}  // namespace medley::cuda
