#include <cooperative_groups.h>

#include "cuda/add_norm.cuh"
#include "cuda/launch.h"
#include "cuda/route_dot.cuh"
#include "cuda/route_group.cuh"
#include "cuda/route_lora.cuh"

namespace medley::cuda {
namespace {

constexpr int kHalfUnit = 8;  // experts that a warp takes at once

// A warp's share of the router: 8 experts over a split of the columns, in blocks of 32.
struct RouterItem {
  int octet = 0;
  int split = 0;
  int first = 0;
  int last = 0;
  const uint8_t* weights = nullptr;  // this lane's 16 bytes of block 0

  __device__ RouterItem(const RouteParams& p, const RouteConfig& config, int item) {
    const int num_blocks = p.layout.padded_cols / 32;
    octet = item / config.num_splits;
    split = item % config.num_splits;
    first = num_blocks * split / config.num_splits;
    last = num_blocks * (split + 1) / config.num_splits;
    weights = p.router + static_cast<int64_t>(octet / 2) * p.layout.unit_bytes + octet % 2 * 512 +
              threadIdx.x % kWarpSize * 16;
  }
  __device__ uint4 load(int block) const {
    return *reinterpret_cast<const uint4*>(weights + block * 1024);
  }
  // This lane's bytes of the first blocks, to be waited for by whoever reads them.
  __device__ void load_early(uint4* early) const {
#pragma unroll
    for (int j = 0; j < kEarlyRouterBlocks; ++j) {
      if (first + j >= last) continue;
      copy_16_async(shared_address(early + j * blockDim.x + threadIdx.x),
                    weights + (first + j) * 1024);
    }
  }
};

// partial[split][expert] = the split's share of the dot product of a router row with the row in
// shared memory, for all items of this block; `partial` is in the cluster's first block.
__device__ void partial_logits(const RouteParams& p, const RouteConfig& config, int first_item,
                               const uint4* early, const float* row, float* partial) {
  const int lane = threadIdx.x % kWarpSize;
  const int num_items = (p.num_experts + kHalfUnit - 1) / kHalfUnit * config.num_splits;
  const float* x = row + lane % 4 * 8;
  for (int i = first_item; i < num_items;
       i += config.cluster * static_cast<int>(blockDim.x) / kWarpSize) {
    const RouterItem item(p, config, i);
    float sum = 0.0f;
    int block = item.first;
    if (i == first_item) {
      wait_async_copies();
      const int end = min(item.last, block + kEarlyRouterBlocks);
      const uint4* mine = early + threadIdx.x;
#pragma unroll 4
      for (; block < end; ++block, mine += blockDim.x) sum = dot_bf16x8(*mine, x + block * 32, sum);
    }
#pragma unroll 4
    for (; block < item.last; ++block) sum = dot_bf16x8(item.load(block), x + block * 32, sum);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int expert = item.octet * kHalfUnit + lane / 4;
    if (lane % 4 == 0 && expert < p.num_experts) {
      partial[item.split * p.num_experts + expert] = sum;
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

// What lane j of a warp knows of choice j.
struct Choice {
  int expert;
  float logit;
  float all;  // kSoftmaxOfAll: sum of exp(logit - largest) over all experts
};

// One warp: the k largest logits, ties to the lower expert. Lane i holds the experts i, i + 32, ...
template <int kPerLane>
__device__ Choice choose_experts(const RouteParams& p, int num_splits, const float* partial,
                                 const float* bias) {
  const int lane = threadIdx.x;
  uint32_t keys[kPerLane];  // 0: no expert, or chosen already
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = i * kWarpSize + lane;
    keys[i] = 0;
    if (expert >= p.num_experts) continue;
    float sum = bias[expert];
#pragma unroll 8
    for (int split = 0; split < num_splits; ++split) sum += partial[split * p.num_experts + expert];
    keys[i] = ordered(sum);
  }
  const int k = p.experts_per_token;
  const auto sum_of_all = [&](float max) {
    if (p.weights != RouteWeights::kSoftmaxOfAll) return 0.0f;
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (keys[i] != 0) all += __expf(from_ordered(keys[i]) - max);
    }
    return warp_sum(all);
  };
  Choice choice = {};
  if constexpr (kPerLane == 1) {
    // An expert's place is the number of better ones.
    int place = 0;
#pragma unroll 4
    for (int j = 0; j < kWarpSize; ++j) {
      const uint32_t other = __shfl_sync(0xffffffffu, keys[0], j);
      place += other > keys[0] || (other == keys[0] && j < lane);
    }
#pragma unroll 1
    for (int j = 0; j < k; ++j) {
      const uint32_t who = __ballot_sync(0xffffffffu, place == j);
      if (lane == j) choice.expert = __ffs(static_cast<int>(who)) - 1;
    }
    choice.logit = __shfl_sync(0xffffffffu, from_ordered(keys[0]), choice.expert);
    choice.all = sum_of_all(__shfl_sync(0xffffffffu, choice.logit, 0));
  } else {
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
      if (j == 0) choice.all = sum_of_all(from_ordered(best));
      if (lane == j) {
        choice.expert = static_cast<int>(expert);
        choice.logit = from_ordered(best);
      }
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (i * kWarpSize + lane == expert) keys[i] = 0;
      }
    }
  }
  return choice;
}

__device__ Choice choose_experts(const RouteParams& p, int num_splits, const float* partial,
                                 const float* bias) {
  if (p.num_experts <= kWarpSize) return choose_experts<1>(p, num_splits, partial, bias);
  if (p.num_experts <= 4 * kWarpSize) return choose_experts<4>(p, num_splits, partial, bias);
  return choose_experts<kMaxRoutedExperts / kWarpSize>(p, num_splits, partial, bias);
}

// One warp: writes a row's choices and their weights.
__device__ void write_choices(const RouteParams& p, const Choice& choice, int row) {
  const int lane = threadIdx.x;
  const int k = p.experts_per_token;
  const float weight = __expf(choice.logit - __shfl_sync(0xffffffffu, choice.logit, 0));
  const float of_chosen = warp_sum(lane < k ? weight : 0.0f);
  const float total = p.weights == RouteWeights::kSoftmaxOfAll ? choice.all : of_chosen;
  if (lane >= k) return;
  p.routing.expert_of_choice[row * k + lane] = choice.expert;
  p.routing.weight_of_choice[row * k + lane] = weight / total;
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

}  // namespace

// Dynamic shared memory: the row and the norm's weights (padded_cols floats each), each thread's
// early 16 bytes of kEarlyRouterBlocks blocks, then (num_splits, num_experts) partial logits; the
// last block to finish reuses it for the grouping.
template <RowDelta kDelta>
__global__ void __launch_bounds__(kMaxRouteThreads, 2)
    add_norm_route_kernel(const __grid_constant__ RouteParams p,
                          const __grid_constant__ RouteConfig config) {
  namespace cg = cooperative_groups;
  extern __shared__ __align__(16) float route_shared[];
  __shared__ float bias[kMaxRoutedExperts];
  __shared__ bool last_row;
  float* norm_weight = route_shared + p.layout.padded_cols;
  auto* early = reinterpret_cast<uint4*>(norm_weight + p.layout.padded_cols);
  uint4* sum = early + kEarlyRouterBlocks * blockDim.x;  // the row before it is normalised
  auto* partial = reinterpret_cast<float*>(sum + p.norm.hidden_size / 8);
  const cg::cluster_group cluster = cg::this_cluster();
  const int row = blockIdx.y;
  const int rank = blockIdx.x;
  if (p.publishes && row + 1 == static_cast<int>(gridDim.y)) return reset_row(p);
  for (int i = p.norm.hidden_size + threadIdx.x; i < p.layout.padded_cols; i += blockDim.x) {
    route_shared[i] = 0.0f;
  }
  // Weights and the step's inputs were there before the predecessor started.
  constexpr int kNormLoads = 2;
  const int num_weights = p.norm.hidden_size / 4;
  for (int base = threadIdx.x; base < num_weights; base += kNormLoads * blockDim.x) {
    float4 values[kNormLoads];
#pragma unroll
    for (int j = 0; j < kNormLoads; ++j) {
      const int i = base + j * blockDim.x;
      if (i < num_weights) values[j] = reinterpret_cast<const float4*>(p.norm.weight)[i];
    }
#pragma unroll
    for (int j = 0; j < kNormLoads; ++j) {
      const int i = base + j * blockDim.x;
      if (i < num_weights) reinterpret_cast<float4*>(norm_weight)[i] = values[j];
    }
  }
  float first[8];
  for (int i = threadIdx.x; i < p.num_experts; i += blockDim.x) {
    bias[i] = p.router_bias == nullptr ? 0.0f : p.router_bias[i];
  }
  const int first_item =
      (rank * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) / kWarpSize;
  if (first_item < (p.num_experts + kHalfUnit - 1) / kHalfUnit * config.num_splits) {
    RouterItem(p, config, first_item).load_early(early);
  }
  const int num_rows = *p.norm.num_rows;
  if (row >= num_rows) {
    wait_for_predecessor();
    launch_dependents();
    if (num_rows == 0 && row == 0 && rank == 0 && threadIdx.x == 0) {
      *p.routing.num_tiles = 0;
      *p.routing.num_segments = 0;
      reset_shrinks(p.routing, /*first=*/0, /*num_pairs=*/0, /*stride=*/1);
    }
    return;
  }
  const RowAhead<kDelta> ahead(p.norm, row);
  const int slot = p.adapter_of_row[row];
  const int lora_rank = p.lora != nullptr && slot >= 0 ? p.lora[slot].rank : 0;
  wait_for_predecessor();
  launch_dependents();
  const float inverse_rms = add_row<kDelta>(p.norm, row, ahead, first, route_shared);
  const auto is_mine = [&](int v) { return v % config.cluster == rank; };
  normalise_row(p.norm, norm_weight, row, inverse_rms, first, route_shared, sum, is_mine);
  __syncthreads();
  partial_logits(p, config, first_item, early, route_shared, cluster.map_shared_rank(partial, 0));
  cluster_arrive();
  const uint32_t published = load_published(p);
  cluster_wait();
  // All blocks of the cluster have read the residual.
  // The first block's first warp has the longest way to go.
  const int first_thread = rank == 0 && blockDim.x > kWarpSize ? kWarpSize : 0;
  store_sum<kDelta>(p.norm, row, sum, is_mine, first_thread);
  if (rank != 0) return;
  if (lora_rank > 0) add_lora_logits(p, p.lora[slot], route_shared, bias);
  if (threadIdx.x < kWarpSize) {
    const int lane = threadIdx.x;
    const Choice choice = choose_experts(p, config.num_splits, partial, bias);
    const int k = p.experts_per_token;
    const int num_pairs = num_rows * k;
    int last = 0;
    if (num_rows == 1 && !config.groups_apart && k <= kWarpSize) {
      group_one_row(p, choice.expert, slot, published);
      write_choices(p, choice, row);
    } else {
      write_choices(p, choice, row);
      last = num_rows == 1 && !config.groups_apart;
      if (num_rows > 1 && !config.groups_apart) {
        __syncwarp();
        if (lane == 0) {
          last = arrive_last(p.routing.arrivals, num_rows);
          if (last) *p.routing.arrivals = 0;
        }
        last = __shfl_sync(0xffffffffu, last, 0);
      }
      if (last && num_pairs <= kWarpSize) {
        int expert = 0;
        int its_slot = 0;
        if (lane < num_pairs) {
          expert = __ldcg(p.routing.expert_of_choice + lane);
          its_slot = p.adapter_of_row[lane / k];
        }
        group_few_pairs(p, make_key(expert, its_slot, lane), num_pairs,
                        reinterpret_cast<uint32_t*>(route_shared));
        last = 0;
      }
    }
    if (lane == 0) last_row = last;
  }
  if (num_rows * p.experts_per_token <= kWarpSize) return;
  __syncthreads();
  if (!last_row) return;
  group_pairs(p, num_rows, *reinterpret_cast<GroupShared*>(route_shared));
}

void launch_add_norm_route(RowDelta delta, const RouteConfig& config, const RouteParams& params,
                           int max_rows, cudaStream_t stream) {
  // One cluster more resets what a step of one row hands on early.
  const LaunchShape shape = {.grid = dim3(config.cluster, max_rows + params.publishes),
                             .block = dim3(config.num_threads),
                             .cluster = config.cluster,
                             .shared_bytes = config.shared_bytes,
                             .max_carveout = true};
  [[maybe_unused]] static const bool allowed = allow_all_shared_memory(
      add_norm_route_kernel<RowDelta::kNone>, add_norm_route_kernel<RowDelta::kDense>,
      add_norm_route_kernel<RowDelta::kRouted>);
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
