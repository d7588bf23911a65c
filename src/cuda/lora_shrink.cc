#include "cuda/lora_shrink.h"

namespace medley::cuda {

LoraShrinkConfig select_lora_shrink(const MatrixLayout& layout) {
  const int blocks = layout.padded_cols / 32;
  const int warps = blocks < kMaxShrinkWarps ? blocks : kMaxShrinkWarps;
  return {.num_warps = warps, .rank_step = 2};
}

}  // namespace medley::cuda
