#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/queue.h"
#include "base/thread_pool.h"

namespace medley {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return invalid_argument(fmt::format("expected an even number, found {}", x), "x");
  return x / 2;
}

Result<int> quarter(int x) {
  MEDLEY_TRY_ASSIGN(const int h, half(x));
  return half(h);
}

TEST(Result, CarriesValueOrError) {
  EXPECT_EQ(*quarter(8), 2);
  const auto failed = quarter(6);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "expected an even number, found 3");
  EXPECT_EQ(failed.error().param, "x");
}

TEST(CheckDeathTest, NamesBothValues) {
  EXPECT_DEATH(MEDLEY_CHECK_EQ(1 + 1, 3), "1 \\+ 1 == 3 \\(2 vs 3\\)");
}

TEST(BoundedQueue, RefusesWhenFullAndDrainsAfterClose) {
  BoundedQueue<std::unique_ptr<int>> queue(2);
  EXPECT_TRUE(queue.try_push(std::make_unique<int>(1)));
  EXPECT_TRUE(queue.try_push(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  EXPECT_FALSE(queue.try_push(std::move(third)));
  EXPECT_NE(third, nullptr) << "a refused item must stay with the caller";
  queue.close();
  EXPECT_FALSE(queue.push(std::move(third)));
  EXPECT_EQ(**queue.pop(), 1);
  EXPECT_EQ(**queue.pop(), 2);
  EXPECT_FALSE(queue.pop().has_value());
}

TEST(BoundedQueue, PassesEverythingOnceBetweenThreads) {
  BoundedQueue<int> queue(4);
  std::atomic<int64_t> sum = 0;
  std::vector<std::thread> threads;
  for (int c = 0; c < 2; ++c) {
    threads.emplace_back([&] {
      while (auto item = queue.pop()) sum += *item;
    });
  }
  for (int i = 1; i <= 1000; ++i) ASSERT_TRUE(queue.push(int{i}));
  queue.close();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sum, 500500);
}

TEST(ThreadPool, RunsEachIndexOnce) {
  ThreadPool pool(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> hits(37);
    pool.parallel_for(37, [&](int64_t i) { ++hits[i]; });
    for (auto& hit : hits) ASSERT_EQ(hit, 1);
  }
}

}  // namespace
}  // namespace medley
