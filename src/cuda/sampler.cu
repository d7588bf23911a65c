#include "cuda/launch.h"
#include "cuda/sampler_logprobs.cuh"

namespace medley::cuda {
namespace {

constexpr int kBlocksPerSm = 2;
constexpr int kCountThreads = 256;
constexpr int kMaxCountBlocks = 132;

// What is to be done for a row.
struct RowSampling {
  int32_t token;  // negative: to be sampled
  int slot;
  int num_top;  // log-probabilities of the best; negative: none at all
  bool adjusts;
  bool draws;
  __device__ bool keeps_row() const { return adjusts || draws || num_top >= 0; }
};

__device__ RowSampling sampling_of(const SampleParams& p, int row_idx) {
  RowSampling sampling;
  sampling.token = p.logit_targets[row_idx];
  sampling.slot = p.sampler_slots[p.logit_seqs[row_idx]];
  const SlotState& state = p.slots[sampling.slot].state;
  const bool samples = sampling.token < 0;
  sampling.num_top = samples ? state.num_top_logprobs : max(state.num_prompt_logprobs, 0);
  sampling.adjusts = samples && (state.has_penalties != 0 || state.num_outputs < state.edits_end);
  sampling.draws = samples && state.temperature > 0.0f;
  return sampling;
}

// The slot's last token, and its count as output.
__device__ void keep_token(const SampleParams& p, int slot, int32_t token) {
  SlotState& state = p.slots[slot].state;
  ++state.num_outputs;
  if (state.has_penalties != 0) ++p.counts[static_cast<int64_t>(slot) * p.vocab_size + token];
  p.last_token[slot] = token;
}

}  // namespace

__global__ void __launch_bounds__(kSampleThreads, kBlocksPerSm)
    sample_kernel(const __grid_constant__ SampleParams p) {
  extern __shared__ __align__(16) float row_values[];
  __shared__ SampleShared shared;
  wait_for_predecessor();
  launch_dependents();
  const int row_idx = blockIdx.y;
  if (row_idx >= *p.num_rows) return;
  const int block = blockIdx.x;
  SampleRow row = {.shared = shared,
                   .values = row_values,
                   .count = max(0, min(p.block_size, p.vocab_size - block * p.block_size)),
                   .first_id = block * p.block_size,
                   .block = block,
                   .phase = 0};
  const RowSampling sampling = sampling_of(p, row_idx);
  LogitRange range = load_row(p, row_idx, sampling.keeps_row(), row);
  if (sampling.keeps_row()) __syncthreads();
  if (sampling.adjusts) {
    adjust_row(p, sampling.slot, row);
    range = range_of_row(row);
  }
  uint64_t best = cluster_reduce(row, range.best_standing(), Largest());
  int32_t token = sampling.token;
  if (token < 0) {
    token = id_of(best);
    const float logit = logit_of_standing(best);
    if (sampling.draws && logit > -INFINITY) {
      const uint32_t above = ~order_of(range.least);
      const float least = logit_of(~static_cast<uint32_t>(cluster_reduce(row, above, Largest())));
      token = draw_token(row, p.slots[sampling.slot].state, logit, least,
                         p.positions + p.logit_rows[row_idx], p.vocab_size);
    }
  }
  // Read once more: kept through the draw, it would take registers that are needed there.
  const RowSampling known = sampling_of(p, row_idx);
  if (known.num_top >= 0) {
    if (known.adjusts) {
      __syncthreads();
      range = load_row(p, row_idx, /*keep=*/true, row);
      best = cluster_reduce(row, range.best_standing(), Largest());
    }
    write_logprobs(p, row_idx, token, min(known.num_top, p.vocab_size), logit_of_standing(best),
                   row);
  }
  cluster_sync();  // what other blocks read of this one's shared memory
  if (block == 0 && threadIdx.x == 0) {
    p.token_ids[row_idx] = token;
    if (known.token < 0) keep_token(p, known.slot, token);
  }
}

__global__ void mark_prompt_kernel(const int32_t* ids, int count, uint32_t* counts) {
  wait_for_predecessor();
  launch_dependents();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    counts[ids[i]] = kInPrompt;
  }
}

__global__ void count_outputs_kernel(const int32_t* ids, int count, uint32_t* counts) {
  wait_for_predecessor();
  launch_dependents();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    atomicAdd(counts + ids[i], 1u);
  }
}

void launch_sample(const SampleParams& params, int max_rows, cudaStream_t stream) {
  [[maybe_unused]] static const bool allowed = allow_all_shared_memory(sample_kernel);
  const LaunchShape shape = {.grid = dim3(kSampleBlocks, max_rows),
                             .block = dim3(kSampleThreads),
                             .cluster = kSampleBlocks,
                             .shared_bytes = params.block_size * sizeof(float)};
  launch(sample_kernel, shape, stream, params);
}

void launch_mark_prompt(const int32_t* ids, int count, uint32_t* counts, cudaStream_t stream) {
  const int blocks = min((count + kCountThreads - 1) / kCountThreads, kMaxCountBlocks);
  launch(mark_prompt_kernel, {.grid = dim3(blocks), .block = dim3(kCountThreads)}, stream, ids,
         count, counts);
}

void launch_count_outputs(const int32_t* ids, int count, uint32_t* counts, cudaStream_t stream) {
  const int blocks = min((count + kCountThreads - 1) / kCountThreads, kMaxCountBlocks);
  launch(count_outputs_kernel, {.grid = dim3(blocks), .block = dim3(kCountThreads)}, stream, ids,
         count, counts);
}

}  // namespace medley::cuda
