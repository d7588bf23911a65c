#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kv/page_pool.h"
#include "kv/page_table.h"

namespace medley {
namespace {

TEST(PagePool, GivesEachPageOnce) {
  PagePool pool(3);
  std::vector<Page> held;
  std::set<int32_t> ids;
  while (auto page = pool.allocate()) {
    ids.insert(page->id());
    held.push_back(std::move(*page));
  }
  EXPECT_EQ(ids, (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.num_held(), 3);
  held.pop_back();
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(PagePool, MovedPageIsFreedOnce) {
  PagePool pool(2);
  {
    Page a = *pool.allocate();
    Page b = std::move(a);
    EXPECT_EQ(pool.num_held(), 1);
    Page c = *pool.allocate();
    b = std::move(c);
    EXPECT_EQ(pool.num_held(), 2);  // the old page of b lives on in c until c dies
  }
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(PageTable, GrowsByWholePages) {
  PagePool pool(4);
  PageTable table;
  EXPECT_TRUE(table.grow(/*num_tokens=*/1, /*page_size=*/4, pool));
  EXPECT_EQ(table.num_pages(), 1);
  EXPECT_TRUE(table.grow(4, 4, pool));
  EXPECT_EQ(table.num_pages(), 1);
  EXPECT_TRUE(table.grow(5, 4, pool));
  EXPECT_EQ(table.num_pages(), 2);
  EXPECT_NE(table[0], table[1]);
}

TEST(PageTable, TakesNothingWhenTooFewAreFree) {
  PagePool pool(2);
  PageTable table;
  EXPECT_FALSE(table.grow(/*num_tokens=*/9, /*page_size=*/4, pool));
  EXPECT_EQ(table.num_pages(), 0);
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(PageTable, KeepsItsPagesWhenItGrows) {
  PagePool pool(8);
  PageTable a, b;
  ASSERT_TRUE(a.grow(8, 4, pool));
  const std::vector<int32_t> before = {a[0], a[1]};
  ASSERT_TRUE(b.grow(8, 4, pool));
  ASSERT_TRUE(a.grow(12, 4, pool));
  EXPECT_EQ((std::vector<int32_t>{a[0], a[1]}), before);
}

TEST(PagePool, FreeAndHeldAreAlwaysTheTotal) {
  std::mt19937 rng(7);
  PagePool pool(37);
  std::vector<PageTable> tables(10);
  for (int i = 0; i < 5000; ++i) {
    PageTable& table = tables[rng() % tables.size()];
    if (rng() % 3 == 0) {
      table.clear();
    } else {
      (void)table.grow(rng() % 60, 4, pool);
    }
    std::set<int32_t> distinct;
    int held = 0;
    for (const PageTable& t : tables) {
      held += t.num_pages();
      for (int p = 0; p < t.num_pages(); ++p) distinct.insert(t[p]);
    }
    ASSERT_EQ(held, pool.num_held());
    ASSERT_EQ(static_cast<int>(distinct.size()), held) << "a page has two owners";
    ASSERT_EQ(pool.num_free() + pool.num_held(), 37);
  }
}

}  // namespace
}  // namespace medley
