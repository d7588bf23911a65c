#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "cuda/lora_entry.h"
#include "cuda/matrix_layout.h"
#include "cuda/routing_view.h"

namespace medley::cuda {

// s[pair] = scale * (A x), rounded to bfloat16, for the pairs of every segment of a dense
// projection; a pair is one of the step's rows. Pairs of the base model keep what they had.
struct LoraShrinkParams {
  RoutingView rows;                  // complete once the predecessor starts
  const LoraEntry* lora = nullptr;   // (slots)
  const __nv_bfloat16* x = nullptr;  // (rows, in_size)
  int in_size = 0;
  MatrixLayout layout;         // of one rank unit of A: columns only
  __nv_bfloat16* s = nullptr;  // (pairs, s_stride)
  int s_stride = 0;
};

inline constexpr int kMaxShrinkWarps = 8;

// A block takes every rank_step-th unit of 16 ranks of every max_blocks-th segment. Its warps split
// the columns at places that depend on the config alone; their sums are added in order.
struct LoraShrinkConfig {
  int num_warps = 0;  // of a block
  int rank_step = 0;
  int max_blocks = 0;
};

void launch_lora_shrink(const LoraShrinkConfig& config, const LoraShrinkParams& params,
                        int max_segments, cudaStream_t stream);

}  // namespace medley::cuda
