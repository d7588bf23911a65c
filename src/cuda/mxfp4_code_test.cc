#include "cuda/mxfp4_code.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tensor/dtype.h"

namespace medley::cuda {
namespace {

constexpr float kE2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                             -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

void expect_decodes(const std::array<uint8_t, 8>& codes) {
  const uint32_t word = encode_e2m1(codes);
  for (int j = 0; j < 8; ++j) {
    const auto half = static_cast<uint16_t>(e2m1_pair(word, j / 2) >> (16 * (j % 2)));
    EXPECT_EQ(bf16_to_float(half), std::ldexp(kE2M1[codes[j]], -kE2M1Exponent)) << "element " << j;
  }
}

TEST(MxFp4Code, EveryCodeInEveryPlace) {
  for (int j = 0; j < 8; ++j) {
    for (uint8_t code = 0; code < 16; ++code) {
      std::array<uint8_t, 8> codes{};
      codes[j] = code;
      expect_decodes(codes);
      codes.fill(15);
      codes[j] = code;
      expect_decodes(codes);
    }
  }
}

TEST(MxFp4Code, RandomWords) {
  std::mt19937 random(7);
  for (int i = 0; i < 10000; ++i) {
    std::array<uint8_t, 8> codes;
    for (uint8_t& code : codes) code = random() % 16;
    expect_decodes(codes);
  }
}

}  // namespace
}  // namespace medley::cuda
