#pragma once

#include "cuda/sampler_select.cuh"

// Log-probabilities of a row as the model left it.

namespace medley::cuda {

// An order that at least `num_top` of the row's tokens have or exceed, and few more as a rule: of
// the threads' best tokens the num_top-th, in the block where that is highest. 0 where a block has
// fewer tokens.
__device__ inline uint32_t top_threshold(SampleRow& row, int num_top) {
  SampleShared& s = row.shared;
  uint32_t best = 0;
  for_each_logit(row, [&](float logit, int) { best = max(best, order_of(logit)); });
  s.best_of_thread[threadIdx.x] = best;
  __syncthreads();
  int better = 0;
#pragma unroll 8
  for (int i = 0; i < kSampleThreads; ++i) {
    const uint32_t other = s.best_of_thread[i];
    better += other > best || (other == best && i < static_cast<int>(threadIdx.x));
  }
  if (better == num_top - 1) s.threshold = best;
  __syncthreads();
  return static_cast<uint32_t>(cluster_reduce(row, s.threshold, Largest()));
}

__device__ inline void write_top(const SampleParams& p, int row_idx, int num_top, double log_sum,
                                 SampleRow& row) {
  const auto write = [&](int place, uint64_t standing) {
    const int at = row_idx * kMaxTopTokens + place;
    p.top_ids[at] = id_of(standing);
    p.top_logprobs[at] = static_cast<float>(logit_of_standing(standing) - log_sum);
  };
  const uint32_t threshold = top_threshold(row, num_top);
  const InRange range = {threshold == 0 ? -INFINITY : logit_of(threshold), INFINITY};
  const int size = list_tokens(row, range);
  if (size <= kListSize) {
    if (row.block == 0 && threadIdx.x < num_top) write(threadIdx.x, row.shared.merged[threadIdx.x]);
    return;
  }
  // Many tokens as good as the worst wanted: one after the other.
  uint64_t last = ~uint64_t{0};
  for (int place = 0; place < num_top; ++place) {
    uint64_t best = 0;
    for_each_logit(row, [&](float logit, int at) {
      const uint64_t each = standing(logit, row.first_id + at);
      if (each > best && each < last) best = each;
    });
    last = cluster_reduce(row, best, Largest());
    if (row.block == 0 && threadIdx.x == 0) write(place, last);
  }
}

// Of `token` and the best `num_top`.
__device__ __noinline__ void write_logprobs(const SampleParams& p, int row_idx, int32_t token,
                                            int num_top, float best, SampleRow row) {
  const Weigher weigher(best, 1.0f, 1.0);
  const float logit = p.logits[static_cast<int64_t>(row_idx) * p.vocab_size + token];
  uint64_t sum = 0;
  uint64_t ahead = 0;
  for_each_logit(row, [&](float each, int at) {
    sum += weigher(each);
    ahead += each > logit || (each == logit && row.first_id + at < token);
  });
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
