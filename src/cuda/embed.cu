#include "cuda/embed_kernel.h"
#include "cuda/launch.h"
#include "cuda/matrix_layout.h"
#include "cuda/primitives.cuh"

namespace medley::cuda {
namespace {

constexpr int kEmbedThreads = 256;

// s[j] = scale[j] * A[j, token], rounded as every shrink's result is.
__device__ void gather_shrink(const LoraEntry& entry, int token, int vocab_size, float* s) {
  constexpr int kCols = block_cols(StreamFormat::kBF16);
  constexpr int kBytes = block_bytes(StreamFormat::kBF16);
  const int64_t unit_bytes = static_cast<int64_t>((vocab_size + kCols - 1) / kCols) * kBytes;
  const int64_t block = token / kCols;
  for (int j = threadIdx.x; j < entry.rank; j += blockDim.x) {
    const int row = j % kUnitRows;
    const uint8_t* at = entry.a + j / kUnitRows * unit_bytes + block * kBytes +
                        (row * kCols + token % kCols) * sizeof(__nv_bfloat16);
    const float a = __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(at));
    s[j] = __bfloat162float(__float2bfloat16_rn(a * entry.scale[j]));
  }
}

__device__ __forceinline__ float dot4(uint32_t first, uint32_t second, const float* s) {
  const float2 a = unpack_bf16x2(first);
  const float2 b = unpack_bf16x2(second);
  return a.x * s[0] + a.y * s[1] + b.x * s[2] + b.y * s[3];
}

// Adds B s: a warp takes units of 16 rows in turn, four lanes the ranks of two rows.
__device__ void write_with_lora(const EmbedParams& p, const LoraEntry& entry, const float* s,
                                const __nv_bfloat16* from, __nv_bfloat16* to) {
  const int lane = threadIdx.x % kWarpSize;
  const int quad = lane % 4;
  const int blocks = entry.rank / kRankBlock;
  const int num_units = (p.hidden_size + kUnitRows - 1) / kUnitRows;
  for (int unit = threadIdx.x / kWarpSize; unit < num_units; unit += kEmbedThreads / kWarpSize) {
    const auto* b = reinterpret_cast<const uint4*>(entry.b + static_cast<int64_t>(unit) * blocks *
                                                                 kRankBlockBytes) +
                    lane;
    float low = 0.0f;
    float high = 0.0f;
    for (int block = 0; block < blocks; ++block) {
      const uint4 v = b[block * kWarpSize];
      const float* at = s + block * kRankBlock + quad * 4;
      low += dot4(v.x, v.z, at);
      high += dot4(v.y, v.w, at);
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      low += __shfl_xor_sync(0xffffffffu, low, offset);
      high += __shfl_xor_sync(0xffffffffu, high, offset);
    }
    const int row = unit * kUnitRows + lane / 4 + (quad == 0 ? 0 : kUnitRows / 2);
    if (quad > 1 || row >= p.hidden_size) continue;
    to[row] = __float2bfloat16_rn(__bfloat162float(from[row]) + (quad == 0 ? low : high));
  }
}

__global__ void __launch_bounds__(kEmbedThreads) embed_kernel(const EmbedParams p) {
  __shared__ float s[kMaxRank];
  wait_for_predecessor();
  launch_dependents();
  const int row = static_cast<int>(blockIdx.x);
  if (row >= *p.num_rows) return;
  int token = p.token_ids[row];
  if (token < 0) token = p.last_token_of_slot[p.sampler_slots[p.seq_of_row[row]]];
  // Tokens are checked before they get here.
  if (token < 0 || token >= p.vocab_size) __trap();
  const __nv_bfloat16* from = p.table + static_cast<int64_t>(token) * p.hidden_size;
  __nv_bfloat16* to = p.residual + static_cast<int64_t>(row) * p.hidden_size;
  const int slot = p.lora == nullptr ? -1 : p.adapter_of_row[row];
  if (slot < 0 || p.lora[slot].rank == 0) {
    for (int v = threadIdx.x; v < p.hidden_size / 8; v += blockDim.x) {
      reinterpret_cast<uint4*>(to)[v] = reinterpret_cast<const uint4*>(from)[v];
    }
    return;
  }
  const LoraEntry entry = p.lora[slot];
  gather_shrink(entry, token, p.vocab_size, s);
  __syncthreads();
  write_with_lora(p, entry, s, from, to);
}

}  // namespace

void launch_embed(const EmbedParams& params, int max_rows, cudaStream_t stream) {
  const LaunchShape shape = {.grid = dim3(max_rows), .block = dim3(kEmbedThreads)};
  launch(embed_kernel, shape, stream, params);
}

}  // namespace medley::cuda
