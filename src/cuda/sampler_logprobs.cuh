#pragma once

#include "cuda/sampler_select.cuh"

// Log-probabilities of a row as the model left it.

namespace medley::cuda {

// The `num_top` best tokens of this block's share, best first, in s.merged.
__device__ inline void find_top(SampleRow& row, int num_top) {
  SampleShared& s = row.shared;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  const auto best_below = [&](uint64_t limit) {
    uint64_t best = 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < row.count; i += kSampleThreads) {
      const uint64_t each = standing(row.values[i], row.first_id + i);
      if (each > best && each < limit) best = each;
    }
    return best;
  };
  // Each warp takes the best of its threads' tokens, one after the other; 0 once it has no more.
  uint64_t mine = best_below(~uint64_t{0});
  for (int j = 0; j < num_top; ++j) {
    const uint64_t best = warp_reduce(mine, Largest());
    if (lane == 0) s.list[warp * num_top + j] = best;
    if (best != 0 && mine == best) mine = best_below(best);
  }
  __syncthreads();
  const int size = kSampleWarps * num_top;
  const int at = static_cast<int>(threadIdx.x);
  int better = kListSize;
  if (at < size) {
    better = 0;
    for (int i = 0; i < size; ++i)
      better += s.list[i] > s.list[at] || (s.list[i] == s.list[at] && i < at);
  }
  if (better < num_top) s.merged[better] = s.list[at];
}

__device__ inline void write_top(const SampleParams& p, int row_idx, int num_top, double log_sum,
                                 SampleRow& row) {
  SampleShared& s = row.shared;
  find_top(row, num_top);
  cluster_sync();
  if (row.block != 0) return;
  const int size = kSampleBlocks * num_top;
  const int at = static_cast<int>(threadIdx.x);
  if (at < size) s.list[at] = in_block(s.merged, at / num_top)[at % num_top];
  __syncthreads();
  if (at >= size || s.list[at] == 0) return;
  const uint64_t mine = s.list[at];
  int better = 0;
  for (int i = 0; i < size; ++i) better += s.list[i] > mine;
  if (better >= num_top) return;
  p.top_ids[row_idx * kMaxTopTokens + better] = id_of(mine);
  p.top_logprobs[row_idx * kMaxTopTokens + better] =
      static_cast<float>(logit_of_standing(mine) - log_sum);
}

// Of `token` and the best `num_top`.
__device__ __noinline__ void write_logprobs(const SampleParams& p, int row_idx, int32_t token,
                                            int num_top, float best, SampleRow row) {
  const Weigher weigher(best, 1.0f, 1.0);
  const float logit = p.logits[static_cast<int64_t>(row_idx) * p.vocab_size + token];
  uint64_t sum = 0;
  uint64_t ahead = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < row.count; i += kSampleThreads) {
    const float each = row.values[i];
    sum += weigher(each);
    ahead += each > logit || (each == logit && row.first_id + i < token);
  }
  sum = cluster_reduce(row, sum, Total());
  ahead = cluster_reduce(row, ahead, Total());
  const double log_sum = best + log(static_cast<double>(sum) * (1.0 / Weigher::kUnit));
  if (row.block == 0 && threadIdx.x == 0) {
    p.logprobs[row_idx] = static_cast<float>(logit - log_sum);
    p.ranks[row_idx] = static_cast<int32_t>(ahead) + 1;
  }
  if (num_top > 0) write_top(p, row_idx, num_top, log_sum, row);
}

}  // namespace medley::cuda
