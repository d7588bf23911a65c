#include "weights/file_memory.h"

#include <cstring>

#include <gtest/gtest.h>

namespace medley {
namespace {

constexpr size_t kMib = size_t{1} << 20;

TEST(FileMemory, IsUsedAgainForFilesOfAboutTheSize) {
  std::byte* data = nullptr;
  {
    const FileMemory memory = FileMemory::allocate(9 * kMib);
    data = memory.data();
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(memory.capacity(), 10 * kMib);
    std::memset(data, 7, 9 * kMib);
  }
  // Half of it would be wasted, or it is too small.
  EXPECT_NE(FileMemory::allocate(4 * kMib).data(), data);
  EXPECT_NE(FileMemory::allocate(11 * kMib).data(), data);
}

TEST(FileMemory, TheLastTwoAreKept) {
  std::byte* data[2] = {};
  {
    const FileMemory first = FileMemory::allocate(30 * kMib);
    const FileMemory second = FileMemory::allocate(30 * kMib);
    data[0] = first.data(), data[1] = second.data();
    EXPECT_NE(data[0], data[1]);
  }
  const FileMemory first = FileMemory::allocate(29 * kMib);
  const FileMemory second = FileMemory::allocate(30 * kMib);
  EXPECT_TRUE((first.data() == data[0] && second.data() == data[1]) ||
              (first.data() == data[1] && second.data() == data[0]));
}

TEST(FileMemory, MovesAndMayBeNone) {
  EXPECT_EQ(FileMemory().data(), nullptr);
  FileMemory from = FileMemory::allocate(1);
  std::byte* data = from.data();
  const FileMemory to = std::move(from);
  EXPECT_EQ(to.data(), data);
  EXPECT_EQ(from.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(FileMemory::allocate(size_t{1} << 60).data(), nullptr);
}

}  // namespace
}  // namespace medley
