#include "cuda/launch.h"
#include "cuda/primitives.cuh"
#include "cuda/qk_norm_rope_kernel.h"

namespace medley::cuda {
namespace {

constexpr int kThreads = 256;

// A thread's four values of a head: two neighbours of the first half and the two that they turn
// with, or, past the rotary part, four neighbours.
struct Unit {
  int low = 0;   // index of the first two
  int high = 0;  // of the other two
  float v[4] = {};
};

__device__ __forceinline__ Unit make_unit(int idx, int rotary_dim) {
  Unit unit;
  const bool turns = 4 * idx < rotary_dim;
  unit.low = turns ? 2 * idx : 4 * idx;
  unit.high = turns ? rotary_dim / 2 + 2 * idx : 4 * idx + 2;
  return unit;
}

__device__ __forceinline__ void load(Unit& unit, const __nv_bfloat16* head) {
  const float2 a = unpack_bf16x2(*reinterpret_cast<const uint32_t*>(head + unit.low));
  const float2 b = unpack_bf16x2(*reinterpret_cast<const uint32_t*>(head + unit.high));
  unit.v[0] = a.x;
  unit.v[1] = a.y;
  unit.v[2] = b.x;
  unit.v[3] = b.y;
}

__device__ __forceinline__ void store(const Unit& unit, __nv_bfloat16* head) {
  *reinterpret_cast<uint32_t*>(head + unit.low) = pack_bf16x2(unit.v[0], unit.v[1]);
  *reinterpret_cast<uint32_t*>(head + unit.high) = pack_bf16x2(unit.v[2], unit.v[3]);
}

}  // namespace

// grid (rows, heads / heads a block). A head is a group of kLanes threads, kUnits units each.
template <int kLanes, int kUnits>
__global__ void __launch_bounds__(kThreads) qk_norm_rope_kernel(const QkNormRopeParams p) {
  const int row = blockIdx.x;
  const int head = (blockIdx.y * kThreads + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int num_roped = p.num_heads + p.num_kv_heads;
  const bool has_work = row < *p.num_rows && head < num_roped + p.num_kv_heads;
  const bool is_q = head < p.num_heads;
  const bool is_v = head >= num_roped;

  // What does not come from an earlier kernel is fetched while that one ends.
  Unit units[kUnits];
  float2 cos[kUnits] = {};
  float2 sin[kUnits] = {};
  float2 weight_low[kUnits] = {};
  float2 weight_high[kUnits] = {};
  const float* norm = is_q ? p.q_norm : p.k_norm;
  const bool is_normed = has_work && !is_v && norm != nullptr;
  __nv_bfloat16* to = nullptr;
  __nv_bfloat16* from = nullptr;
  if (has_work) {
    const int position = p.positions[row];
    from = p.qkv + (static_cast<int64_t>(row) * (num_roped + p.num_kv_heads) + head) * p.head_dim;
    to = from;
    if (!is_q) {
      const int64_t page = p.page_ids[p.page_indptr[p.seq_of_row[row]] + position / p.page_size];
      const int kv_head = is_v ? head - num_roped : head - p.num_heads;
      to = (is_v ? p.values : p.keys) +
           ((page * p.num_kv_heads + kv_head) * p.page_size + position % p.page_size) * p.head_dim;
    }
    if (p.rotary_dim > 0 && position >= p.max_position) __trap();
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int idx = u * kLanes + lane;
      units[u] = make_unit(idx, p.rotary_dim);
      if (4 * idx >= p.head_dim) continue;
      if (!is_v && 4 * idx < p.rotary_dim) {
        const int64_t offset = static_cast<int64_t>(position) * (p.rotary_dim / 2) + 2 * idx;
        cos[u] = *reinterpret_cast<const float2*>(p.cos + offset);
        sin[u] = *reinterpret_cast<const float2*>(p.sin + offset);
      }
      if (is_normed) {
        weight_low[u] = *reinterpret_cast<const float2*>(norm + units[u].low);
        weight_high[u] = *reinterpret_cast<const float2*>(norm + units[u].high);
      }
    }
  }
  wait_for_predecessor();
  launch_dependents();

  float squares = 0.0f;
  if (has_work) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (4 * (u * kLanes + lane) >= p.head_dim) continue;
      load(units[u], from);
      for (const float v : units[u].v) squares += v * v;
    }
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    squares += __shfl_xor_sync(0xffffffffu, squares, offset);
  }
  if (!has_work) return;
  const float scale = 1.0f / sqrtf(squares / p.head_dim + p.eps);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int idx = u * kLanes + lane;
    if (4 * idx >= p.head_dim) continue;
    float(&v)[4] = units[u].v;
    if (is_normed) {
      v[0] = v[0] * scale * weight_low[u].x;
      v[1] = v[1] * scale * weight_low[u].y;
      v[2] = v[2] * scale * weight_high[u].x;
      v[3] = v[3] * scale * weight_high[u].y;
    }
    if (!is_v && 4 * idx < p.rotary_dim) {
      const float a0 = v[0];
      const float a1 = v[1];
      v[0] = a0 * cos[u].x - v[2] * sin[u].x;
      v[1] = a1 * cos[u].y - v[3] * sin[u].y;
      v[2] = v[2] * cos[u].x + a0 * sin[u].x;
      v[3] = v[3] * cos[u].y + a1 * sin[u].y;
    }
    store(units[u], to);
  }
}

void launch_qk_norm_rope(const QkNormRopeParams& params, int max_rows, cudaStream_t stream) {
  const auto launch_with = [&](auto kernel, int lanes) {
    const int threads = (params.num_heads + 2 * params.num_kv_heads) * lanes;
    const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
    launch(kernel, {.grid = dim3(max_rows, blocks), .block = dim3(kThreads)}, stream, params);
  };
  if (params.head_dim <= 16) return launch_with(qk_norm_rope_kernel<4, 1>, 4);
  if (params.head_dim <= 32) return launch_with(qk_norm_rope_kernel<8, 1>, 8);
  if (params.head_dim <= 64) return launch_with(qk_norm_rope_kernel<16, 1>, 16);
  if (params.head_dim <= 128) return launch_with(qk_norm_rope_kernel<32, 1>, 32);
  launch_with(qk_norm_rope_kernel<32, 2>, 32);
}

}  // namespace medley::cuda
