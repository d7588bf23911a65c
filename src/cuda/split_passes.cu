#include "cuda/add_norm.cuh"
#include "cuda/gate.cuh"
#include "cuda/launch.h"
#include "cuda/primitives.cuh"
#include "cuda/split_lora_kernel.h"

// The passes over activations that the split path pays for beside its products.

namespace medley::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSegment = 4;

}  // namespace

__global__ void split_zero_kernel(SplitSums sums) {
  wait_for_predecessor();
  launch_dependents();
  auto* values =
      reinterpret_cast<float4*>(sums.values + static_cast<int64_t>(blockIdx.x) * kSplitStride);
  for (int i = threadIdx.x; i < kSplitStride / 4; i += blockDim.x) values[i] = {};
}

__global__ void split_add_kernel(const __grid_constant__ SplitAddParams p) {
  wait_for_predecessor();
  launch_dependents();
  if (blockIdx.x >= *p.routing.num_segments) return;
  const RouteSegment segment = p.routing.segments[blockIdx.x];
  if (p.lora[segment.slot].rank == 0) return;
  const int64_t offset = static_cast<int64_t>(segment.begin) * p.stride;
  const auto* delta = reinterpret_cast<const uint4*>(p.delta + offset);
  auto* out = reinterpret_cast<uint4*>(p.out + offset);
  const int vectors = segment.count * (p.stride / 8);
  for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < vectors; i += gridDim.y * blockDim.x) {
    float sum[8] = {};
    add_bf16x8(sum, out[i], 1.0f);
    add_bf16x8(sum, delta[i], 1.0f);
    out[i] = pack_bf16x8(sum);
  }
}

__global__ void split_activate_kernel(const __grid_constant__ ExpertGemmParams base,
                                      __nv_bfloat16* out) {
  wait_for_predecessor();
  launch_dependents();
  const int num_tiles = *base.routing.num_tiles;
  if (num_tiles == 0) return;
  const RouteTile last = base.routing.tiles[num_tiles - 1];
  const int pair = blockIdx.x;
  if (pair >= last.begin + last.count) return;
  const int vectors = base.out_size / 8;
  const auto* gates = reinterpret_cast<const uint4*>(base.out) + int64_t{2} * pair * vectors;
  auto* to = reinterpret_cast<uint4*>(out) + static_cast<int64_t>(pair) * vectors;
  for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
    float gate[8] = {};
    float up[8] = {};
    add_bf16x8(gate, gates[i], 1.0f);
    add_bf16x8(up, gates[vectors + i], 1.0f);
#pragma unroll
    for (int j = 0; j < 8; ++j) gate[j] = gate_times_up(base.gate, gate[j], up[j]);
    to[i] = pack_bf16x8(gate);
  }
}

void launch_split_zero(const SplitSums& sums, int max_pairs, cudaStream_t stream) {
  launch(split_zero_kernel, {.grid = dim3(max_pairs), .block = dim3(kThreads)}, stream, sums);
}

void launch_split_add(const SplitAddParams& params, int max_pairs, cudaStream_t stream) {
  launch(split_add_kernel, {.grid = dim3(max_pairs, kBlocksPerSegment), .block = dim3(kThreads)},
         stream, params);
}

void launch_split_activate(const ExpertGemmParams& base, __nv_bfloat16* out, int max_pairs,
                           cudaStream_t stream) {
  launch(split_activate_kernel, {.grid = dim3(max_pairs), .block = dim3(kThreads)}, stream, base,
         out);
}

}  // namespace medley::cuda
