#include "cpu/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace medley::cpu {
namespace {

TEST(Rope, RotatesHalvesAndLeavesTheRestOfTheHead) {
  RopeTables tables;
  const auto table = tables.get({.theta = 100.0, .rotary_dim = 4, .attention_factor = 2.0}, 8);
  float head[] = {1, 2, 3, 4, 5, 6};
  apply_rope(*table, 3, head);
  // Pairs (0, 2) at 3 radians and (1, 3) at 0.3, both times 2.
  EXPECT_NEAR(head[0], 2 * (1 * std::cos(3.0) - 3 * std::sin(3.0)), 1e-5);
  EXPECT_NEAR(head[2], 2 * (3 * std::cos(3.0) + 1 * std::sin(3.0)), 1e-5);
  EXPECT_NEAR(head[1], 2 * (2 * std::cos(0.3) - 4 * std::sin(0.3)), 1e-5);
  EXPECT_NEAR(head[3], 2 * (4 * std::cos(0.3) + 2 * std::sin(0.3)), 1e-5);
  EXPECT_EQ(head[4], 5);
  EXPECT_EQ(head[5], 6);
}

}  // namespace
}  // namespace medley::cpu
