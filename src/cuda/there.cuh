#pragma once

#include "cuda/primitives.cuh"

// Values that say by their own bits whether they are there: memory holds kNotThere until they are
// written, so that between a writer and its reader lie one store and one load, without a fence, a
// flag or a counter.

namespace medley::cuda {

// No float32 value and no pair of bfloat16 of a kernel has these bits: NaN is 0x7fffffff, 0x7fff.
inline constexpr uint32_t kNotThere = 0xffffffffu;

__device__ __forceinline__ uint4 load_relaxed_16(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
// Of global or shared memory.
__device__ __forceinline__ uint2 load_relaxed_8(const void* from) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_relaxed_4(const void* from) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ void store_relaxed_16(void* to, const uint4& v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_relaxed_4(void* to, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}

__device__ __forceinline__ bool is_there(const uint4& v) {
  return v.x != kNotThere && v.y != kNotThere && v.z != kNotThere && v.w != kNotThere;
}
__device__ __forceinline__ bool is_there(const uint2& v) {
  return v.x != kNotThere && v.y != kNotThere;
}
__device__ __forceinline__ bool is_there(uint32_t v) { return v != kNotThere; }

// `v`, a uint32_t, uint2 or uint4 read from `from`, once all of it is there.
template <class Value>
__device__ __forceinline__ Value wait_until_there(Value v, const void* from) {
  for (uint32_t polls = 0; !is_there(v); ++polls) {
    if (polls > kMaxPolls) __trap();
    if constexpr (sizeof(Value) == 4) {
      v = load_relaxed_4(from);
    } else if constexpr (sizeof(Value) == 8) {
      v = load_relaxed_8(from);
    } else {
      v = load_relaxed_16(from);
    }
  }
  return v;
}

}  // namespace medley::cuda
