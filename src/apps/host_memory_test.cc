#include "apps/host_memory.h"

#include <gtest/gtest.h>

namespace medley::apps {
namespace {

TEST(HostMemory, LimitsOfAContainer) {
  EXPECT_EQ(parse_memory_limit("137438953472\n"), 137438953472);
  EXPECT_EQ(parse_memory_limit("5"), 5);
  for (const char* none : {"", "max\n", "-1\n", "12x", "99999999999999999999"}) {
    EXPECT_EQ(parse_memory_limit(none), std::nullopt) << none;
  }
}

TEST(HostMemory, IsThere) { EXPECT_GT(host_memory_bytes(), int64_t{1} << 28); }

}  // namespace
}  // namespace medley::apps
