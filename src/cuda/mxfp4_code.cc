#include "cuda/mxfp4_code.h"

#include <utility>

namespace medley::cuda {
namespace {

// Bit b of code j's contribution to the word is word_of_bit[4 * j + b].
using WordOfBit = std::array<uint32_t, 32>;

constexpr int output_bit(int code_bit) { return code_bit == 3 ? 15 : 6 + code_bit; }

// Inverts e2m1_pair by elimination: row r of the system says which word bits make code bit r.
WordOfBit invert() {
  std::array<uint32_t, 32> row{};
  for (int word_bit = 0; word_bit < 32; ++word_bit) {
    for (int j = 0; j < 8; ++j) {
      const uint32_t half = e2m1_pair(1u << word_bit, j / 2) >> (16 * (j % 2));
      for (int b = 0; b < 4; ++b) row[4 * j + b] |= ((half >> output_bit(b)) & 1u) << word_bit;
    }
  }
  std::array<uint32_t, 32> combination{};  // which code bits row r is the sum of
  for (int r = 0; r < 32; ++r) combination[r] = 1u << r;
  for (int bit = 0; bit < 32; ++bit) {
    int pivot = bit;
    while (((row[pivot] >> bit) & 1u) == 0) ++pivot;
    std::swap(row[bit], row[pivot]);
    std::swap(combination[bit], combination[pivot]);
    for (int r = 0; r < 32; ++r) {
      if (r == bit || ((row[r] >> bit) & 1u) == 0) continue;
      row[r] ^= row[bit];
      combination[r] ^= combination[bit];
    }
  }
  WordOfBit word{};
  for (int bit = 0; bit < 32; ++bit) {
    for (int code_bit = 0; code_bit < 32; ++code_bit) {
      word[code_bit] |= ((combination[bit] >> code_bit) & 1u) << bit;
    }
  }
  return word;
}

using WordOfCode = std::array<std::array<uint32_t, 16>, 8>;

WordOfCode tabulate() {
  const WordOfBit word_of_bit = invert();
  WordOfCode table{};
  for (int j = 0; j < 8; ++j) {
    for (int code = 0; code < 16; ++code) {
      for (int b = 0; b < 4; ++b) {
        if ((code >> b) & 1) table[j][code] ^= word_of_bit[4 * j + b];
      }
    }
  }
  return table;
}

}  // namespace

uint32_t encode_e2m1(const std::array<uint8_t, 8>& codes) {
  static const WordOfCode table = tabulate();
  uint32_t word = 0;
  for (int j = 0; j < 8; ++j) word ^= table[j][codes[j] & 0xf];
  return word;
}

}  // namespace medley::cuda
