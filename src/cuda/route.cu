#include <cooperative_groups.h>

#include "cuda/add_norm.cuh"
#include "cuda/launch.h"
#include "cuda/route_group.cuh"

namespace medley::cuda {
namespace {

constexpr int kHalfUnit = 8;  // experts that a warp takes at once
constexpr int kMaxRouteThreads = 512;

// partial[split][expert] = the split's share of the dot product of a router row with the row in
// shared memory, for all (8 experts, split) items of this block; stored in the cluster's first
// block.
__device__ void partial_logits(const RouteParams& p, const RouteConfig& config, const float* row,
                               float* partial, int block_rank) {
  const int lane = threadIdx.x % kWarpSize;
  const int num_warps = blockDim.x / kWarpSize;
  const int num_blocks = p.layout.padded_cols / 32;
  const int num_items = (p.num_experts + kHalfUnit - 1) / kHalfUnit * config.num_splits;
  for (int item = block_rank * num_warps + threadIdx.x / kWarpSize; item < num_items;
       item += config.cluster * num_warps) {
    const int octet = item / config.num_splits;
    const int split = item % config.num_splits;
    const int first = num_blocks * split / config.num_splits;
    const int last = num_blocks * (split + 1) / config.num_splits;
    const uint8_t* weights =
        p.router + static_cast<int64_t>(octet / 2) * p.layout.unit_bytes + octet % 2 * 512 + lane * 16;
    float sum = 0.0f;
#pragma unroll 4
    for (int block = first; block < last; ++block) {
      const uint4 w = *reinterpret_cast<const uint4*>(weights + block * 1024);
      const float* x = row + block * 32 + lane % 4 * 8;
      const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack_bf16x2(words[i]);
        sum += pair.x * x[2 * i];
        sum += pair.y * x[2 * i + 1];
      }
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int expert = octet * kHalfUnit + lane / 4;
    if (lane % 4 == 0 && expert < p.num_experts) {
      partial[split * p.num_experts + expert] = sum;
    }
  }
}

// Orders floats as unsigned integers.
__device__ __forceinline__ uint32_t ordered(float value) {
  const uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// One warp: the k largest logits, ties to the lower expert, and their weights. Lane i holds the
// experts i, i + 32, ...
__device__ void choose_experts(const RouteParams& p, int num_splits, const float* partial,
                               int row) {
  constexpr int kPerLane = kMaxRoutedExperts / kWarpSize;
  const int lane = threadIdx.x;
  uint32_t keys[kPerLane];  // 0: no expert, or chosen already
  float all = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = i * kWarpSize + lane;
    keys[i] = 0;
    if (expert >= p.num_experts) continue;
    float sum = p.router_bias == nullptr ? 0.0f : p.router_bias[expert];
#pragma unroll 8
    for (int split = 0; split < num_splits; ++split) sum += partial[split * p.num_experts + expert];
    keys[i] = ordered(sum);
  }
  const int k = p.experts_per_token;
  float max = 0.0f;
  float chosen_weight = 0.0f;  // lane j holds choice j
  int chosen_expert = 0;
  float chosen_sum = 0.0f;
  for (int j = 0; j < k; ++j) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) best = keys[i] > best ? keys[i] : best;
    best = __reduce_max_sync(0xffffffffu, best);
    uint32_t mine = kMaxRoutedExperts;
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i) {
      if (keys[i] == best) mine = i * kWarpSize + lane;
    }
    const uint32_t expert = __reduce_min_sync(0xffffffffu, mine);
    if (j == 0) {
      max = from_ordered(best);
      if (p.weights == RouteWeights::kSoftmaxOfAll) {
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
          if (keys[i] != 0) all += __expf(from_ordered(keys[i]) - max);
        }
        all = warp_sum(all);
      }
    }
    const float weight = __expf(from_ordered(best) - max);
    chosen_sum += weight;
    if (lane == j) {
      chosen_weight = weight;
      chosen_expert = static_cast<int>(expert);
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (i * kWarpSize + lane == expert) keys[i] = 0;
    }
  }
  const float total = p.weights == RouteWeights::kSoftmaxOfAll ? all : chosen_sum;
  if (lane < k) {
    p.routing.expert_of_choice[row * k + lane] = chosen_expert;
    p.routing.weight_of_choice[row * k + lane] = chosen_weight / total;
  }
}

// Counts a row as routed; true for the last one of the step, whose caller then sees all rows'.
__device__ bool arrive_last(uint32_t* arrivals, int num_rows) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(arrivals)
               : "memory");
  return before == static_cast<uint32_t>(num_rows - 1);
}

// Brings this block's share of the router closer while the predecessor runs.
__device__ void prefetch_router(const RouteParams& p, int block_rank, int num_blocks) {
  const int64_t lines = static_cast<int64_t>(p.layout.matrix_bytes() / 128);
  for (int64_t i = block_rank * blockDim.x + threadIdx.x; i < lines;
       i += static_cast<int64_t>(num_blocks) * blockDim.x) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p.router + i * 128));
  }
}

}  // namespace

// Dynamic shared memory: the row (padded_cols floats), then (num_splits, num_experts) partial
// logits; the last block to finish reuses it for the grouping.
template <RowDelta kDelta>
__global__ void __launch_bounds__(kMaxRouteThreads, 1)
    add_norm_route_kernel(const __grid_constant__ RouteParams p,
                          const __grid_constant__ RouteConfig config) {
  namespace cg = cooperative_groups;
  extern __shared__ __align__(16) float route_shared[];
  __shared__ bool last_row;
  float* partial = route_shared + p.layout.padded_cols;
  const cg::cluster_group cluster = cg::this_cluster();
  const int row = blockIdx.y;
  const int rank = blockIdx.x;
  for (int i = p.norm.hidden_size + threadIdx.x; i < p.layout.padded_cols; i += blockDim.x) {
    route_shared[i] = 0.0f;
  }
  if (row == 0) prefetch_router(p, rank, config.cluster);
  wait_for_predecessor();
  launch_dependents();
  const int num_rows = *p.norm.num_rows;
  // Rows up to the padded batch exist; their values only count below num_rows.
  const float inverse_rms = add_row<kDelta>(p.norm, row, route_shared);
  if (row >= num_rows) {
    if (num_rows == 0 && row == 0 && rank == 0 && threadIdx.x == 0) {
      *p.routing.num_tiles = 0;
      *p.routing.num_segments = 0;
    }
    return;
  }
  cluster_arrive();  // this block has read the residual that the first one replaces
  if (rank != 0) {
    normalise_row(p.norm, inverse_rms, route_shared);
    cluster_wait();
  } else {
    cluster_wait();
    store_row<kDelta>(p.norm, row, inverse_rms, route_shared);
  }
  __syncthreads();
  partial_logits(p, config, route_shared, cluster.map_shared_rank(partial, 0), rank);
  cluster_arrive();
  cluster_wait();
  if (rank != 0) return;

  if (threadIdx.x < kWarpSize) {
    choose_experts(p, config.num_splits, partial, row);
    __syncwarp();
    if (threadIdx.x == 0) {
      last_row = num_rows == 1 || arrive_last(p.routing.arrivals, num_rows);
      if (last_row && num_rows > 1) *p.routing.arrivals = 0;
    }
  }
  __syncthreads();
  if (!last_row) return;
  group_pairs(p, num_rows, *reinterpret_cast<GroupShared*>(route_shared));
}

void launch_add_norm_route(RowDelta delta, const RouteConfig& config, const RouteParams& params,
                           int max_rows, cudaStream_t stream) {
  const LaunchShape shape = {.grid = dim3(config.cluster, max_rows),
                             .block = dim3(config.num_threads),
                             .cluster = config.cluster,
                             .shared_bytes = config.shared_bytes};
  switch (delta) {
    case RowDelta::kNone:
      return launch(add_norm_route_kernel<RowDelta::kNone>, shape, stream, params, config);
    case RowDelta::kDense:
      return launch(add_norm_route_kernel<RowDelta::kDense>, shape, stream, params, config);
    case RowDelta::kRouted:
      return launch(add_norm_route_kernel<RowDelta::kRouted>, shape, stream, params, config);
  }
}

}  // namespace medley::cuda
