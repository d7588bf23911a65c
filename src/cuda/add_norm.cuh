#pragma once

#include "cuda/add_norm_kernel.h"
#include "cuda/primitives.cuh"

namespace medley::cuda {

__device__ __forceinline__ void add_bf16x8(float (&sum)[8], uint4 values, float factor) {
  const uint32_t words[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_bf16x2(words[i]);
    sum[2 * i] += factor * pair.x;
    sum[2 * i + 1] += factor * pair.y;
  }
}

__device__ __forceinline__ uint4 pack_bf16x8(const float (&v)[8]) {
  return {pack_bf16x2(v[0], v[1]), pack_bf16x2(v[2], v[3]), pack_bf16x2(v[4], v[5]),
          pack_bf16x2(v[6], v[7])};
}

// What add_row reads of a routed row before the kernel that wrote the delta has ended: the routing
// and the residual are older than that kernel, which has triggered after its own wait.
template <RowDelta kDelta>
struct RowAhead {
  static constexpr int kChoices = 4;  // a row's further ones are read later
  uint4 residual;                     // of this thread's first vector
  int pair[kChoices];
  float weight[kChoices];

  __device__ RowAhead(const AddNormParams& p, int row) {
    if constexpr (kDelta == RowDelta::kRouted) {
      if (static_cast<int>(threadIdx.x) < p.hidden_size / 8) {
        residual = reinterpret_cast<const uint4*>(p.residual + static_cast<int64_t>(row) *
                                                                   p.hidden_size)[threadIdx.x];
      }
#pragma unroll
      for (int c = 0; c < kChoices; ++c) {
        if (c >= p.experts_per_token) continue;
        pair[c] = p.routing.pair_of_choice[row * p.experts_per_token + c];
        weight[c] = p.routing.weight_of_choice[row * p.experts_per_token + c];
      }
    }
  }
};

// The block reads one row's residual and delta and leaves the rounded sum in `first`, a thread's
// first vector, and the further ones in `row_values` (shared, H floats); returns 1 / rms, the same
// in all threads. Writes nothing to global memory. The sum of squares is taken in an order that
// depends on the block size alone.
template <RowDelta kDelta>
__device__ float add_row(const AddNormParams& p, int row, const RowAhead<kDelta>& ahead,
                         float (&first)[8], float* row_values) {
  __shared__ float warp_sums[32];
  const int num_vectors = p.hidden_size / 8;
  const auto* residual =
      reinterpret_cast<const uint4*>(p.residual + static_cast<int64_t>(row) * p.hidden_size);
  float squares = 0.0f;
  for (int v = threadIdx.x; v < num_vectors; v += blockDim.x) {
    float sum[8] = {};
    if constexpr (kDelta == RowDelta::kRouted) {
      constexpr int kAhead = RowAhead<kDelta>::kChoices;
      uint4 values[kAhead];
#pragma unroll
      for (int c = 0; c < kAhead; ++c) {
        if (c >= p.experts_per_token) continue;
        values[c] = reinterpret_cast<const uint4*>(p.delta + static_cast<int64_t>(ahead.pair[c]) *
                                                                 p.hidden_size)[v];
      }
#pragma unroll
      for (int c = 0; c < kAhead; ++c) {
        if (c < p.experts_per_token) add_bf16x8(sum, values[c], ahead.weight[c]);
      }
#pragma unroll 4
      for (int c = kAhead; c < p.experts_per_token; ++c) {
        const int choice = row * p.experts_per_token + c;
        const int64_t pair = p.routing.pair_of_choice[choice];
        add_bf16x8(sum, reinterpret_cast<const uint4*>(p.delta + pair * p.hidden_size)[v],
                   p.routing.weight_of_choice[choice]);
      }
    } else if constexpr (kDelta == RowDelta::kDense) {
      add_bf16x8(
          sum,
          reinterpret_cast<const uint4*>(p.delta + static_cast<int64_t>(row) * p.hidden_size)[v],
          1.0f);
    }
    const bool is_first = v == static_cast<int>(threadIdx.x);
    const bool is_ahead = kDelta == RowDelta::kRouted && is_first;
    add_bf16x8(sum, is_ahead ? ahead.residual : residual[v], 1.0f);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float rounded = __bfloat162float(__float2bfloat16_rn(sum[i]));
      if (is_first) {
        first[i] = rounded;
      } else {
        row_values[8 * v + i] = rounded;
      }
      squares += rounded * rounded;
    }
  }
  squares = warp_sum(squares);
  const int warp = threadIdx.x / kWarpSize;
  if (threadIdx.x % kWarpSize == 0) warp_sums[warp] = squares;
  __syncthreads();
  const int lane = threadIdx.x % kWarpSize;
  const float total =
      warp_sum(lane < static_cast<int>(blockDim.x) / kWarpSize ? warp_sums[lane] : 0.0f);
  return rsqrtf(total / p.hidden_size + p.eps);
}

// Leaves the row of add_row, normalised and rounded, in `row_values` (shared, H floats); keeps it
// as it was in `sum` (shared, H bfloat16). What goes to memory: out's vectors v of eight values
// with stores(v).
template <class Stores>
__device__ void normalise_row(const AddNormParams& p, const float* weight, int row,
                              float inverse_rms, const float (&first)[8], float* row_values,
                              uint4* sum, const Stores& stores) {
  auto* out = reinterpret_cast<uint4*>(p.out + static_cast<int64_t>(row) * p.hidden_size);
  for (int v = threadIdx.x; v < p.hidden_size / 8; v += blockDim.x) {
    const bool is_first = v == static_cast<int>(threadIdx.x);
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = is_first ? first[i] : row_values[8 * v + i];
    sum[v] = pack_bf16x8(values);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] =
          __bfloat162float(__float2bfloat16_rn(values[i] * inverse_rms * weight[8 * v + i]));
      row_values[8 * v + i] = values[i];
    }
    if (stores(v)) out[v] = pack_bf16x8(values);
  }
}

// Stores the residual that normalise_row kept, by the threads from `first_thread` on.
template <RowDelta kDelta, class Stores>
__device__ void store_sum(const AddNormParams& p, int row, const uint4* sum, const Stores& stores,
                          int first_thread) {
  if (kDelta == RowDelta::kNone) return;
  auto* residual = reinterpret_cast<uint4*>(p.residual + static_cast<int64_t>(row) * p.hidden_size);
  const int step = static_cast<int>(blockDim.x) - first_thread;
  const int thread = static_cast<int>(threadIdx.x) - first_thread;
  if (thread < 0) return;
  for (int v = thread; v < p.hidden_size / 8; v += step) {
    if (stores(v)) residual[v] = sum[v];
  }
}

}  // namespace medley::cuda
