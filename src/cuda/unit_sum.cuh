#pragma once

#include "cuda/primitives.cuh"

// A unit's product with few rows, as one warp makes it: the unit's 16 matrix rows (matrix_layout.h)
// by the activations' rows, in halves of 8.

namespace medley::cuda {

// Columns of one mma.
inline constexpr int kHalfRows = 8;

template <int kHalves>
struct UnitSum {
  float value[kHalves][4] = {};
};

// Adds a kBF16 block of 32 columns: `low` and `high` are this lane's 16 bytes of the unit's rows
// 0-7 and 8-15, `x` its 16 bytes of a half's activations.
__device__ __forceinline__ void add_bf16_block(float (&sum)[4], uint4 low, uint4 high, uint4 x) {
  mma_16x8x16(sum, {low.x, high.x, low.y, high.y}, x.x, x.y, sum);
  mma_16x8x16(sum, {low.z, high.z, low.w, high.w}, x.z, x.w, sum);
}

}  // namespace medley::cuda
