#include "cpu/simd.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cpu/activation.h"

namespace medley::cpu {
namespace {

float exp_of(float x) { return _mm256_cvtss_f32(exp8(_mm256_set1_ps(x))); }

TEST(Simd, ExpWithinTwoUnitsInTheLastPlace) {
  for (float x = -87.0f; x <= 88.0f; x += 0.00317f) {
    const double want = std::exp(static_cast<double>(x));
    ASSERT_NEAR(exp_of(x) / want, 1.0, 2 * 0x1p-23) << x;
  }
  EXPECT_EQ(exp_of(0.0f), 1.0f);
}

TEST(Simd, ExpStaysFiniteBeyondItsRange) {
  EXPECT_EQ(exp_of(1000.0f), exp_of(88.0f));
  EXPECT_EQ(exp_of(-INFINITY), exp_of(-87.0f));
}

// gate = min(g, 7), up = clamp(u, -7, 7): (up + 1) * gate * sigmoid(1.702 * gate).
TEST(Activation, ClampedSwiGlu) {
  const float gate[] = {0, 1, -1, 7, 9, -9, -200, 3, 2, 0.5f};
  const float up[] = {5, 2, -3, 9, -9, 0, 1, -1, 7.5f, 0};
  float out[10];
  activate({.kind = Activation::kClampedSwiGlu}, gate, up, 10, out);
  const auto want = [](double g, double u) { return (u + 1) * g / (1 + std::exp(-1.702 * g)); };
  const double expected[] = {0, want(1, 2), want(-1, -3), want(7, 7),  want(7, -7), want(-9, 0),
                             0, 0,          want(2, 7),   want(0.5, 0)};
  for (int i = 0; i < 10; ++i) EXPECT_NEAR(out[i], expected[i], 1e-5) << i;
}

TEST(Activation, SwiGlu) {
  const float gate[] = {-2, 0, 20}, up[] = {3, 1, -1};
  float out[3];
  activate({}, gate, up, 3, out);
  EXPECT_NEAR(out[0], -6 / (1 + std::exp(2.0)), 1e-6);
  EXPECT_EQ(out[1], 0);
  EXPECT_NEAR(out[2], -20, 1e-5);
}

TEST(Simd, DotOfEveryLength) {
  float a[40], b[40];
  double want = 0;
  for (int i = 0; i < 40; ++i) {
    a[i] = static_cast<float>(i + 1);
    b[i] = static_cast<float>(40 - i);
    EXPECT_EQ(dot(a, b, i), want);  // small integers: exact
    want += (i + 1.0) * (40 - i);
  }
}

}  // namespace
}  // namespace medley::cpu
