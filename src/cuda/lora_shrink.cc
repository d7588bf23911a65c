#include "cuda/lora_shrink.h"

namespace medley::cuda {
namespace {

constexpr int kMaxSharedPairs = 16;

}  // namespace

LoraShrinkConfig select_lora_shrink(const MatrixLayout& layout, int max_pairs) {
  const int blocks = layout.padded_cols / 32;
  const int warps = blocks < kMaxShrinkWarps ? blocks : kMaxShrinkWarps;
  return {.num_warps = warps, .rank_step = 2, .cluster = max_pairs <= kMaxSharedPairs ? 4 : 1};
}

}  // namespace medley::cuda
