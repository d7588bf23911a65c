#include "cuda/lora_shrink.h"

#include <algorithm>

namespace medley::cuda {

LoraShrinkConfig select_lora_shrink(const MatrixLayout& layout) {
  return {.num_warps = std::min(layout.padded_cols / block_cols(layout.format), kMaxShrinkWarps),
          .rank_step = 6,
          .max_blocks = 128};
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
  launch_lora_shrink(select_lora_shrink(params.layout), params, job.max_pairs, cuda_stream(stream));
  return params.s;
}

}  // namespace medley::cuda
