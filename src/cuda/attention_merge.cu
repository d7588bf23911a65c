#include "cuda/attention_kernel.h"
#include "cuda/launch.h"
#include "cuda/primitives.cuh"

namespace medley::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 4;  // values a thread

}  // namespace

// grid (sequences, heads * head_dim / kVector / kThreads)
__global__ void __launch_bounds__(kThreads) merge_chunks_kernel(const MergeParams p) {
  const int seq = blockIdx.x;
  const bool in_step = seq < *p.num_seqs;
  const int begin = in_step ? p.chunks.chunk_indptr[seq] : 0;
  const int end = in_step ? p.chunks.chunk_indptr[seq + 1] : 0;
  const int row = in_step ? p.q_indptr[seq] : 0;
  wait_for_predecessor();
  launch_dependents();
  const int row_size = p.num_heads * p.head_dim;
  const int column = (blockIdx.y * kThreads + threadIdx.x) * kVector;
  if (begin == end || column >= row_size) return;
  const int head = column / p.head_dim;
  float largest = -INFINITY;
  for (int chunk = begin; chunk < end; ++chunk) {
    largest = fmaxf(largest, p.chunks.lse[static_cast<int64_t>(chunk) * p.num_heads + head]);
  }
  float4 sum = {};
  float denominator = 0.0f;
#pragma unroll 4
  for (int chunk = begin; chunk < end; ++chunk) {
    const float weight =
        exp2f(p.chunks.lse[static_cast<int64_t>(chunk) * p.num_heads + head] - largest);
    const float4 value = *reinterpret_cast<const float4*>(
        p.chunks.out + static_cast<int64_t>(chunk) * row_size + column);
    denominator += weight;
    sum.x += weight * value.x;
    sum.y += weight * value.y;
    sum.z += weight * value.z;
    sum.w += weight * value.w;
  }
  const float inverse = 1.0f / denominator;
  *reinterpret_cast<uint2*>(p.out + static_cast<int64_t>(row) * row_size + column) = {
      pack_bf16x2(sum.x * inverse, sum.y * inverse), pack_bf16x2(sum.z * inverse, sum.w * inverse)};
}

void launch_merge_chunks(const MergeParams& params, int max_seqs, cudaStream_t stream) {
  const int columns = params.num_heads * params.head_dim / kVector;
  const auto blocks = static_cast<unsigned>((columns + kThreads - 1) / kThreads);
  launch(merge_chunks_kernel, {.grid = dim3(max_seqs, blocks), .block = dim3(kThreads)}, stream,
         params);
}

}  // namespace medley::cuda
