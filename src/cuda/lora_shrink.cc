#include "cuda/lora_shrink.h"

namespace medley::cuda {
namespace {

constexpr int kMaxSharedPairs = 64;

}  // namespace

LoraShrinkConfig select_lora_shrink(const MatrixLayout& layout, int max_pairs) {
  const int blocks = layout.padded_cols / 32;
  const int warps = blocks < kMaxShrinkWarps ? blocks : kMaxShrinkWarps;
  if (max_pairs <= kMaxSharedPairs) {
    return {.num_warps = warps, .rank_step = 6, .cluster = 4, .max_clusters = 32};
  }
  return {.num_warps = warps, .rank_step = 6, .cluster = 1, .max_clusters = 128};
}

const __nv_bfloat16* run_lora_shrink(Context& context, const LoraShrinkJob& job, Stream& stream) {
  MEDLEY_CHECK_LE(job.max_pairs * size_t{kShrinkStride} * 2, context.shrink_out.num_bytes());
  const LoraShrinkParams params = {.rows = job.rows,
                                   .lora = job.lora,
                                   .x = job.x,
                                   .in_size = job.in_size,
                                   .layout = lora_a_layout(job.in_size),
                                   .s = context.shrink_out.as<__nv_bfloat16>(),
                                   .s_stride = kShrinkStride};
  launch_lora_shrink(select_lora_shrink(params.layout, job.max_pairs), params, job.max_pairs,
                     cuda_stream(stream));
  return params.s;
}

}  // namespace medley::cuda
