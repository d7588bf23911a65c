#include "cuda/lora_shrink.h"

namespace medley::cuda {

LoraShrinkConfig select_lora_shrink(const MatrixLayout& layout) {
  const int blocks = layout.padded_cols / 32;
  int warps = 12;
  for (int candidate = 12; candidate >= 8; --candidate) {
    if (blocks % candidate == 0) {
      warps = candidate;
      break;
    }
  }
  return {.num_warps = warps, .rank_step = 2};
}

}  // namespace medley::cuda
