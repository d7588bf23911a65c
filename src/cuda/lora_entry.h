#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace medley::cuda {

// What an adapter adds at one site; rank 0 = nothing. Entries of a site lie by slot in device
// memory, so a captured graph survives loading and unloading.
//
// A is packed as matrices of kBF16 layout (matrix_layout.h), its rank rows padded to units of 16;
// with two A's (gate, up) the second's units follow the first's. B is packed in blocks of 16 output
// rows by 16 ranks, 512 bytes, by (unit, rank block): lane 4 g + q holds (row g, ranks 4 q, 4 q +
// 1), (g + 8, same), (g, 4 q + 2, 4 q + 3), (g + 8, same).
struct LoraEntry {
  const uint8_t* a = nullptr;
  const uint8_t* b = nullptr;
  const float* scale = nullptr;  // (num_a * rank)
  int64_t a_expert_bytes = 0;    // 0: one A for all experts
  int64_t b_expert_bytes = 0;
  int32_t rank = 0;  // of each A, padded to a multiple of 16
  int32_t num_a = 1;
};

inline constexpr int kRankBlock = 16;
inline constexpr int kRankBlockBytes = 512;
inline constexpr int kMaxRank = 512;

}  // namespace medley::cuda
