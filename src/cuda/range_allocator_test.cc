#include "cuda/range_allocator.h"

#include <gtest/gtest.h>

#include <array>

#include <algorithm>
#include <random>
#include <vector>

namespace medley::cuda {
namespace {

constexpr size_t kUnit = RangeAllocator::kAlignment;

TEST(RangeAllocatorTest, TakesTheSmallestRangeThatFits) {
  RangeAllocator ranges(10 * kUnit);
  const size_t a = ranges.allocate(3 * kUnit).value();  // [0, 3)
  ranges.allocate(1 * kUnit).value();                   // [3, 4)
  const size_t c = ranges.allocate(2 * kUnit).value();  // [4, 6)
  ranges.allocate(1).value();                           // [6, 7)
  ranges.free(a);
  ranges.free(c);
  // Free: [0, 3), [4, 6), [7, 10).
  EXPECT_EQ(ranges.used(), 2 * kUnit);
  EXPECT_EQ(ranges.largest_free(), 3 * kUnit);
  EXPECT_EQ(ranges.allocate(kUnit + 1), 4 * kUnit);
  EXPECT_EQ(ranges.allocate(3 * kUnit), 0u);
  EXPECT_EQ(ranges.allocate(4 * kUnit), std::nullopt);
  EXPECT_EQ(ranges.allocate(3 * kUnit), 7 * kUnit);
  EXPECT_EQ(ranges.largest_free(), 0u);
  EXPECT_EQ(ranges.allocate(1), std::nullopt);
}

TEST(RangeAllocatorTest, NeighboursJoinOnBothSides) {
  RangeAllocator ranges(3 * kUnit);
  std::array<size_t, 3> all;
  for (size_t& offset : all) offset = ranges.allocate(kUnit).value();
  ranges.free(all[0]);
  ranges.free(all[2]);
  EXPECT_EQ(ranges.largest_free(), kUnit);
  ranges.free(all[1]);
  EXPECT_EQ(ranges.largest_free(), 3 * kUnit);
}

TEST(RangeAllocatorTest, GrowsAtItsEnd) {
  RangeAllocator ranges;
  EXPECT_EQ(ranges.allocate(1), std::nullopt);
  ranges.grow(2 * kUnit + 5);
  EXPECT_EQ(ranges.capacity(), 2 * kUnit);
  ranges.allocate(kUnit).value();
  ranges.grow(kUnit);
  EXPECT_EQ(ranges.allocate(2 * kUnit), kUnit) << "the old end and the new part are one range";
}

TEST(RangeAllocatorTest, AbortsOnWhatItDidNotHandOut) {
  RangeAllocator ranges(4 * kUnit);
  const size_t a = ranges.allocate(2 * kUnit).value();
  EXPECT_DEATH(ranges.free(a + kUnit), "not handed out");
  ranges.free(a);
  EXPECT_DEATH(ranges.free(a), "not handed out");
}

// The oracle is a map of units, each free or owned: best fit by looking at all of them.
TEST(RangeAllocatorTest, RandomUseAgainstAMapOfUnits) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 engine(seed);
    std::vector<bool> used(engine() % 200 + 1);
    RangeAllocator ranges(used.size() * kUnit);
    std::vector<std::pair<size_t, size_t>> held;  // (first unit, units)
    for (int i = 0; i < 2000; ++i) {
      if (engine() % 100 < 55) {
        const size_t bytes = engine() % (engine() % 4 == 0 ? 40 * kUnit : 6 * kUnit) + 1;
        const size_t units = (bytes + kUnit - 1) / kUnit;
        size_t best = used.size();
        size_t best_size = used.size() + 1;
        for (size_t at = 0; at < used.size();) {
          if (used[at]) {
            ++at;
            continue;
          }
          size_t end = at;
          while (end < used.size() && !used[end]) ++end;
          if (end - at >= units && end - at < best_size) {
            best = at;
            best_size = end - at;
          }
          at = end;
        }
        const auto offset = ranges.allocate(bytes);
        ASSERT_EQ(offset.has_value(), best < used.size());
        if (offset) {
          ASSERT_EQ(*offset, best * kUnit);
          std::fill_n(used.begin() + static_cast<int64_t>(best), units, true);
          held.emplace_back(best, units);
        }
      } else if (!held.empty()) {
        std::swap(held[engine() % held.size()], held.back());
        const auto [first, units] = held.back();
        held.pop_back();
        ranges.free(first * kUnit);
        std::fill_n(used.begin() + static_cast<int64_t>(first), units, false);
      }
      size_t largest = 0;
      size_t run = 0;
      for (const bool unit : used) {
        run = unit ? 0 : run + 1;
        largest = std::max(largest, run);
      }
      ASSERT_EQ(ranges.used(), std::count(used.begin(), used.end(), true) * kUnit);
      ASSERT_EQ(ranges.largest_free(), largest * kUnit);
    }
  }
}

}  // namespace
}  // namespace medley::cuda
