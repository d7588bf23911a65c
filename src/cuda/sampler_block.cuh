#pragma once

#include "cuda/primitives.cuh"
#include "cuda/sampler_kernel.h"

// One row of logits in the shared memory of a cluster, and sums over it. All results are the same
// in every thread of the cluster and, being maxima or integer sums, in every run.

namespace medley::cuda {

inline constexpr int kSampleThreads = 256;  // what 128 registers each allow, two blocks to an SM
inline constexpr int kSampleWarps = kSampleThreads / kWarpSize;
inline constexpr int kBins = kSampleThreads;
inline constexpr int kListSize = kSampleThreads;

// Where a running count or weight reaches what is looked for.
struct SamplePlace {
  uint64_t weight_before;
  uint64_t weight;  // through it
  uint32_t count_before;
  uint32_t count;
  int32_t index;  // of the bin, or of the listed token
};

struct SampleShared {
  union {
    struct {
      uint32_t counts[kBins];
      uint32_t low[kBins];  // of the weights: 15 bits each, and the rest
      uint32_t middle[kBins];
      uint32_t high[kBins];
    } bins;
    uint64_t merged[kListSize];
    uint32_t best_of_thread[kSampleThreads];
  };
  uint64_t list[2][kListSize];  // standings of this block's tokens
  uint32_t list_size[2];
  uint64_t exchange[2];
  uint64_t warp_weights[kSampleWarps];
  uint32_t warp_counts[kSampleWarps];
  SamplePlace place;
  uint32_t threshold;
  int32_t token;
};

// This block's share of a row: ids [first_id, first_id + count).
struct SampleRow {
  SampleShared& shared;
  float* values;
  int count;
  int first_id;
  int block;
  // Which exchange and list come next. What another block reads of one is written again only after
  // a barrier of the cluster that it has passed since.
  int phase;
};

// Calls visit(logit, place in the share) for each logit, in no order.
template <class Visit>
__device__ __forceinline__ void for_each_logit(const SampleRow& row, const Visit& visit) {
  const int num_vectors = row.count / 4;
#pragma unroll 2
  for (int v = threadIdx.x; v < num_vectors; v += kSampleThreads) {
    const float4 logits = reinterpret_cast<const float4*>(row.values)[v];
    visit(logits.x, 4 * v);
    visit(logits.y, 4 * v + 1);
    visit(logits.z, 4 * v + 2);
    visit(logits.w, 4 * v + 3);
  }
  const int rest = 4 * num_vectors + static_cast<int>(threadIdx.x);
  if (rest < row.count) visit(row.values[rest], rest);
}

__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// The same place in another block's shared memory. Volatile: kept for later, the addresses would
// take more registers than there are.
template <class T>
__device__ __forceinline__ T* in_block(T* pointer, int block) {
  T* mapped;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(pointer), "r"(block));
  return mapped;
}

// Orders logits as unsigned integers; both zeros are equal.
__device__ __forceinline__ uint32_t order_of(float logit) {
  const uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}

// A token as a number that falls along the ranking: by falling logit, then rising id. Never 0.
__device__ __forceinline__ uint64_t standing(float logit, int id) {
  return uint64_t{order_of(logit)} << 32 | static_cast<uint32_t>(~id);
}
__device__ __forceinline__ int id_of(uint64_t standing) {
  return ~static_cast<int>(static_cast<uint32_t>(standing));
}
__device__ __forceinline__ float logit_of_standing(uint64_t standing) {
  return logit_of(static_cast<uint32_t>(standing >> 32));
}

struct Largest {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};
struct Total {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
// Of the two 32-bit halves, each on its own.
struct LargestHalves {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const {
    const uint32_t high = max(static_cast<uint32_t>(a >> 32), static_cast<uint32_t>(b >> 32));
    const uint32_t low = max(static_cast<uint32_t>(a), static_cast<uint32_t>(b));
    return uint64_t{high} << 32 | low;
  }
};

template <class Op>
__device__ __forceinline__ uint64_t warp_reduce(uint64_t value, Op op) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// Also a barrier of the cluster. 0 is neutral to all operations.
template <class Op>
__device__ __forceinline__ uint64_t cluster_reduce(SampleRow& row, uint64_t value, Op op) {
  SampleShared& s = row.shared;
  const int lane = threadIdx.x % kWarpSize;
  value = warp_reduce(value, op);
  if (lane == 0) s.warp_weights[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  if (threadIdx.x < kWarpSize) {
    value = warp_reduce(lane < kSampleWarps ? s.warp_weights[lane] : 0, op);
    if (lane == 0) s.exchange[row.phase] = value;
  }
  cluster_sync();
  value = lane < kSampleBlocks ? *in_block(&s.exchange[row.phase], lane) : 0;
  row.phase ^= 1;
  return warp_reduce(value, op);
}

// Of the logits that one thread has seen: the best, of equals the first; the least that is no
// infinity.
struct LogitRange {
  float best = -INFINITY;
  int best_id = -1;
  float least = INFINITY;

  __device__ void add(float logit, int id) {
    if (logit > best || best_id < 0) {
      best = logit;
      best_id = id;
    }
    if (logit > -INFINITY) least = fminf(least, logit);
  }
  __device__ uint64_t best_standing() const { return best_id < 0 ? 0 : standing(best, best_id); }
};

// Reads this block's share of a row, into shared memory if `keep`. A barrier must follow before
// another thread reads it.
__device__ inline LogitRange load_row(const SampleParams& p, int row_idx, bool keep,
                                      SampleRow& row) {
  LogitRange range;
  const float* from = p.logits + static_cast<int64_t>(row_idx) * p.vocab_size + row.first_id;
  if (p.vocab_size % 4 != 0) {
    for (int i = threadIdx.x; i < row.count; i += kSampleThreads) {
      const float logit = __ldcg(from + i);
      if (keep) row.values[i] = logit;
      range.add(logit, row.first_id + i);
    }
    return range;
  }
  constexpr int kLoads = 8;
  const auto* vectors = reinterpret_cast<const float4*>(from);
  const int num_vectors = row.count / 4;
  for (int base = threadIdx.x; base < num_vectors; base += kLoads * kSampleThreads) {
    float4 loaded[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int v = base + j * kSampleThreads;
      if (v < num_vectors) loaded[j] = __ldcg(vectors + v);
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int v = base + j * kSampleThreads;
      if (v >= num_vectors) continue;
      if (keep) reinterpret_cast<float4*>(row.values)[v] = loaded[j];
      const int id = row.first_id + 4 * v;
      range.add(loaded[j].x, id);
      range.add(loaded[j].y, id + 1);
      range.add(loaded[j].z, id + 2);
      range.add(loaded[j].w, id + 3);
    }
  }
  return range;
}

__device__ inline LogitRange range_of_row(const SampleRow& row) {
  LogitRange range;
  for_each_logit(row, [&](float logit, int at) { range.add(logit, row.first_id + at); });
  return range;
}

// The logit of a token that was seen before.
__device__ __forceinline__ float penalised(const SlotState& state, uint32_t seen, float logit) {
  if (seen == 0) return logit;
  logit = logit > 0 ? logit / state.repetition_penalty : logit * state.repetition_penalty;
  const uint32_t count = seen & ~kInPrompt;
  if (count == 0) return logit;
  const float frequency = __fmul_rn(state.frequency_penalty, static_cast<float>(count));
  return __fsub_rn(__fsub_rn(logit, frequency), state.presence_penalty);
}

__device__ inline void penalise_row(const SampleParams& p, int slot, const SlotState& state,
                                    SampleRow& row) {
  const uint32_t* counts = p.counts + static_cast<int64_t>(slot) * p.vocab_size + row.first_id;
  if (p.vocab_size % 4 != 0) {
    for (int i = threadIdx.x; i < row.count; i += kSampleThreads) {
      row.values[i] = penalised(state, __ldcg(counts + i), row.values[i]);
    }
    return;
  }
  constexpr int kLoads = 4;
  const int num_vectors = row.count / 4;
  for (int base = threadIdx.x; base < num_vectors; base += kLoads * kSampleThreads) {
    uint4 seen[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int v = base + j * kSampleThreads;
      seen[j] = v < num_vectors ? __ldcg(reinterpret_cast<const uint4*>(counts) + v) : uint4{};
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if ((seen[j].x | seen[j].y | seen[j].z | seen[j].w) == 0) continue;
      float* logits = row.values + 4 * (base + j * kSampleThreads);
      logits[0] = penalised(state, seen[j].x, logits[0]);
      logits[1] = penalised(state, seen[j].y, logits[1]);
      logits[2] = penalised(state, seen[j].z, logits[2]);
      logits[3] = penalised(state, seen[j].w, logits[3]);
    }
  }
}

// Changes the row in shared memory as the slot says: edits, then penalties.
__device__ inline void adjust_row(const SampleParams& p, int slot, SampleRow& row) {
  const SlotState& state = p.slots[slot].state;
  const SlotEdit* edits = p.slots[slot].edits;
  if (state.num_outputs < state.edits_end) {
    for (int i = threadIdx.x; i < state.num_edits; i += kSampleThreads) {
      const int id = edits[i].token_id;
      const int at = id - row.first_id;
      const bool is_first = i == 0 || edits[i - 1].token_id != id;
      if (!is_first || at < 0 || at >= row.count) continue;
      float logit = row.values[at];
      for (int j = i; j < state.num_edits && edits[j].token_id == id; ++j) {
        if (state.num_outputs < edits[j].num_outputs) logit += edits[j].add;
      }
      row.values[at] = logit;
    }
    __syncthreads();
  }
  if (state.has_penalties == 0) return;
  penalise_row(p, slot, state, row);
  __syncthreads();
}

}  // namespace medley::cuda
