#include "cuda/attention_kernel.h"
#include "cuda/launch.h"
#include "cuda/primitives.cuh"

namespace medley::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxValues = kMaxPlainHeadDim / kWarpSize;  // a lane's values of one head

}  // namespace

// One warp per row and head; lane l holds values l, l + 32, ... of the head.
__global__ void __launch_bounds__(kWarps* kWarpSize)
    plain_attention_kernel(const PlainAttentionParams p) {
  wait_for_predecessor();
  launch_dependents();
  const AttentionInputs& in = p.inputs;
  const int row = blockIdx.x;
  const int head = blockIdx.y * kWarps + threadIdx.x / kWarpSize;
  if (row >= *p.num_rows || head >= in.num_heads) return;
  const int lane = threadIdx.x % kWarpSize;
  const int kv_head = head / (in.num_heads / in.num_kv_heads);
  const int32_t* pages = in.page_ids + in.page_indptr[p.seq_of_row[row]];
  const int position = p.positions[row];
  const int first = in.window > 0 ? max(0, position - in.window + 1) : 0;

  float q[kMaxValues] = {};
  float sum[kMaxValues] = {};
  const __nv_bfloat16* q_head =
      in.q + static_cast<int64_t>(row) * in.q_stride + static_cast<int64_t>(head) * p.head_dim;
#pragma unroll
  for (int i = 0; i < kMaxValues; ++i) {
    const int d = i * kWarpSize + lane;
    if (d < p.head_dim) q[i] = __bfloat162float(q_head[d]);
  }
  float largest = in.sinks == nullptr ? -INFINITY : in.sinks[head];
  float denominator = in.sinks == nullptr ? 0.0f : 1.0f;
  for (int key = first; key <= position; ++key) {
    const int64_t page = pages[key / in.page_size];
    const int64_t offset =
        ((page * in.num_kv_heads + kv_head) * in.page_size + key % in.page_size) * p.head_dim;
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kMaxValues; ++i) {
      const int d = i * kWarpSize + lane;
      if (d < p.head_dim) dot += q[i] * __bfloat162float(in.keys[offset + d]);
    }
    const float score = warp_sum(dot) * in.scale;
    const float raised = fmaxf(largest, score);
    const float shrink = expf(largest - raised);
    const float weight = expf(score - raised);
    denominator = denominator * shrink + weight;
    largest = raised;
#pragma unroll
    for (int i = 0; i < kMaxValues; ++i) {
      const int d = i * kWarpSize + lane;
      if (d < p.head_dim) {
        sum[i] = sum[i] * shrink + weight * __bfloat162float(in.values[offset + d]);
      }
    }
  }
  __nv_bfloat16* out = p.out + (static_cast<int64_t>(row) * in.num_heads + head) * p.head_dim;
#pragma unroll
  for (int i = 0; i < kMaxValues; ++i) {
    const int d = i * kWarpSize + lane;
    if (d < p.head_dim) out[d] = __float2bfloat16_rn(sum[i] / denominator);
  }
}

void launch_plain_attention(const PlainAttentionParams& params, int max_rows, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>((params.inputs.num_heads + kWarps - 1) / kWarps);
  launch(plain_attention_kernel, {.grid = dim3(max_rows, heads), .block = dim3(kWarps * kWarpSize)},
         stream, params);
}

}  // namespace medley::cuda
