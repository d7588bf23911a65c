#pragma once

#include <array>
#include <cstdint>

namespace medley::cuda {

// How eight E2M1 values (OCP MX v1.0) sit in a 32-bit word so that a shift and one AND finish a
// pair of bfloat16. Pair i is
//
//   i = 0: w    1: w << 4    2: rotate_left(w, 10)    3: (w << 6) ^ (w >> 2),   each & kE2M1Mask
//
// which leaves the sign at bit 15 and the magnitude at bits 8..6 of each half: the value times
// 2^-126 (exact, zero and 0.5 included), element 2i in the low half and 2i + 1 in the high half.
// The four outputs together are an invertible map over GF(2), so every choice of eight values has
// exactly one word.
inline constexpr uint32_t kE2M1Mask = 0x81c081c0u;
inline constexpr int kE2M1Exponent = 126;

inline constexpr uint32_t e2m1_pair(uint32_t w, int i) {
  switch (i) {
    case 0:
      return w & kE2M1Mask;
    case 1:
      return (w << 4) & kE2M1Mask;
    case 2:
      return ((w << 10) | (w >> 22)) & kE2M1Mask;
    default:
      return ((w << 6) ^ (w >> 2)) & kE2M1Mask;
  }
}

// The word of eight 4-bit codes (sign, two exponent bits, mantissa bit).
uint32_t encode_e2m1(const std::array<uint8_t, 8>& codes);

}  // namespace medley::cuda
