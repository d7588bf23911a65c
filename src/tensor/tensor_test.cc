#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace medley {
namespace {

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.00390625f), 0x3f80) << "1 + 2^-8 is a tie: even mantissa wins";
  EXPECT_EQ(float_to_bf16(1.01171875f), 0x3f82) << "1 + 3 * 2^-8 is a tie: even mantissa wins";
  EXPECT_EQ(float_to_bf16(-0.0f), 0x8000);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80) << "rounds to infinity";
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(NAN))));
}

TEST(Float16, KnownBitPatterns) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0xc000), -2.0f);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0f);
  EXPECT_EQ(f16_to_float(0x0001), std::ldexp(1.0f, -24));
  EXPECT_TRUE(std::isinf(f16_to_float(0xfc00)));
}

TEST(HostTensor, OwnsZeroedAlignedMemory) {
  HostTensor tensor(DType::kF32, {3, 5});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view().data) % 64, 0u);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(tensor.as<float>()[i], 0.0f);
  EXPECT_EQ(tensor.shape().to_string(), "(3, 5)");
  HostTensor moved = std::move(tensor);
  EXPECT_EQ(moved.view().num_bytes(), 60u);
}

}  // namespace
}  // namespace medley
