#pragma once

#include "cuda/primitives.cuh"

namespace medley::cuda {

// `sum` and the product of eight bfloat16 weights with eight values, 16-byte aligned.
__device__ __forceinline__ float dot_bf16x8(uint4 w, const float* x, float sum) {
  const uint32_t words[4] = {w.x, w.y, w.z, w.w};
  const float4 low = reinterpret_cast<const float4*>(x)[0];
  const float4 high = reinterpret_cast<const float4*>(x)[1];
  const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_bf16x2(words[i]);
    sum += pair.x * values[2 * i];
    sum += pair.y * values[2 * i + 1];
  }
  return sum;
}

}  // namespace medley::cuda
