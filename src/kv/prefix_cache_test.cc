#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace medley {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int kPageSize = 2;

// A sequence that has computed all its tokens.
struct Seq {
  std::string space;
  Tokens tokens;
  PageTable table;
  PrefixCache::Path path;

  Tokens pages() const {
    Tokens ids;
    for (int i = 0; i < table.num_pages(); ++i) ids.push_back(table[i]);
    return ids;
  }
};

class PrefixCacheTest : public ::testing::Test {
 protected:
  // Looks its tokens up, computes the rest.
  Seq start(Tokens tokens, const std::string& space = "") {
    Seq seq{.space = space, .tokens = std::move(tokens), .table = {}, .path = {}};
    const int num_pages = num_pages_for(seq.tokens.size(), kPageSize);
    seq.path = cache_.match(space, seq.tokens, num_pages, seq.table);
    cache_.evict(num_pages - seq.table.num_pages());
    EXPECT_TRUE(seq.table.grow(seq.tokens.size(), kPageSize, pool_));
    return seq;
  }
  void add(Seq& seq, bool may_replace = false) {
    cache_.insert(seq.space, seq.tokens, seq.table, may_replace, seq.path);
  }
  void finish(Seq& seq) {
    add(seq, /*may_replace=*/true);
    seq.table.clear();
  }
  int num_hits(Tokens tokens, const std::string& space = "") {
    PageTable table;
    return cache_.match(space, tokens, 100, table).num_pages;
  }

  PagePool pool_{8};
  PrefixCache cache_{pool_, kPageSize};
};

//   a  [1 2]→p0 [3 4]→p1 [5 .]p2
//   b  [1 2]→p0 [3 9]→p3
TEST_F(PrefixCacheTest, SharesFullPagesOfEqualTokens) {
  Seq a = start({1, 2, 3, 4, 5});
  add(a);
  Seq b = start({1, 2, 3, 9});
  EXPECT_EQ(a.pages(), (Tokens{0, 1, 2}));
  EXPECT_EQ(b.pages(), (Tokens{0, 3}));
  EXPECT_EQ(b.path.num_pages, 1);
  EXPECT_EQ(num_hits({1, 2, 3, 4, 5, 6}), 2) << "the page of 5 is not full";
  EXPECT_EQ(num_hits({3, 4}), 0) << "a page's content depends on what is before it";
  EXPECT_EQ(pool_.num_held(), 4);
}

TEST_F(PrefixCacheTest, MatchesAtMostWhatIsAskedFor) {
  Seq a = start({1, 2, 3, 4});
  add(a);
  PageTable table;
  EXPECT_EQ(cache_.match("", Tokens{1, 2, 3, 4}, 1, table).num_pages, 1);
  EXPECT_EQ(table.num_pages(), 1);
}

TEST_F(PrefixCacheTest, PagesOutliveTheirSequence) {
  Seq a = start({1, 2, 3, 4, 5});
  finish(a);
  EXPECT_EQ(pool_.num_cached(), 2);
  EXPECT_EQ(pool_.num_free(), 6);
  Seq b = start({1, 2, 3, 4, 5});
  EXPECT_EQ(b.path.num_pages, 2);
  EXPECT_EQ(pool_.num_cached(), 0);
}

TEST_F(PrefixCacheTest, SpacesAreKeptApart) {
  Seq base = start({1, 2, 3, 4});
  finish(base);
  EXPECT_EQ(num_hits({1, 2, 3, 4}, "9f3a"), 0);
  Seq adapter = start({1, 2, 3, 4}, "9f3a");
  finish(adapter);
  EXPECT_EQ(num_hits({1, 2, 3, 4}, "9f3a"), 2);
  EXPECT_EQ(num_hits({1, 2, 3, 4}, "9f3b"), 0);
  EXPECT_EQ(pool_.num_cached(), 4);
}

//   before   [1 2]→p0 [3 4]→p1 [5 6]→p2   released last to first
//   evict 1  [1 2]→p0 [3 4]→p1
//   evict 1  [1 2]→p0
TEST_F(PrefixCacheTest, EvictsLeavesFirst) {
  Seq a = start({1, 2, 3, 4, 5, 6});
  finish(a);
  cache_.evict(6);
  EXPECT_EQ(num_hits({1, 2, 3, 4, 5, 6}), 2);
  cache_.evict(7);
  EXPECT_EQ(num_hits({1, 2, 3, 4, 5, 6}), 1);
  cache_.evict(100);
  EXPECT_EQ(pool_.num_free(), 8);
  EXPECT_EQ(cache_.num_nodes(), 0);
}

TEST_F(PrefixCacheTest, EvictsWhatWasUsedLongestAgo) {
  Seq a = start({1, 2}), b = start({3, 4}), c = start({5, 6});
  for (Seq* seq : {&a, &b, &c}) finish(*seq);
  Seq again = start({1, 2});
  again.table.clear();
  cache_.evict(7);
  EXPECT_EQ(num_hits({3, 4}), 0);
  EXPECT_EQ(num_hits({5, 6}), 0);
  EXPECT_EQ(num_hits({1, 2}), 1);
}

TEST_F(PrefixCacheTest, NeverEvictsWhatIsHeld) {
  Seq a = start({1, 2, 3, 4}), b = start({5, 6});
  add(a);
  finish(b);
  cache_.evict(100);
  EXPECT_EQ(num_hits({1, 2, 3, 4}), 2);
  EXPECT_EQ(num_hits({5, 6}), 0);
  EXPECT_EQ(pool_.num_held(), 2);
}

//   a, b compute [1 2] both; a is faster. b's own pages stay out while b runs; when it ends, a's
//   page takes the place of b's and the rest goes below it.
TEST_F(PrefixCacheTest, WhoComputedTheSamePartsUntilItEnds) {
  Seq a = start({1, 2}), b = start({1, 2, 3, 4});
  add(a);
  add(b);
  EXPECT_TRUE(b.path.has_parted);
  EXPECT_EQ(cache_.num_nodes(), 1);
  EXPECT_EQ(num_hits({1, 2, 3, 4}), 1);
  finish(a);
  EXPECT_EQ(pool_.num_cached(), 1) << "b holds its own page";
  finish(b);
  EXPECT_EQ(num_hits({1, 2, 3, 4}), 2);
  EXPECT_EQ(pool_.num_cached(), 2);
  cache_.evict(7);
  EXPECT_EQ(num_hits({1, 2, 3, 4}), 1) << "the leaf went first, though its parent was older";
}

// Against a table of every cached prefix, kept by hand.
TEST(PrefixCacheProperty, FindsWhatIsThereAndCountsEveryPage) {
  constexpr int kNumPages = 23;
  std::mt19937 rng(11);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution(low, high)(rng);
  };
  PagePool pool(kNumPages);
  PrefixCache cache(pool, kPageSize);
  std::vector<Seq> running;
  std::map<int32_t, std::pair<std::string, Tokens>> content;  // what was computed into a page
  int num_hits = 0, num_evicted = 0;
  for (int i = 0; i < 20000; ++i) {
    if (!running.empty() && pick(0, 2) == 0) {
      const auto it = running.begin() + pick(0, static_cast<int>(running.size()) - 1);
      if (pick(0, 3) > 0) {
        cache.insert(it->space, it->tokens, it->table, /*may_replace=*/true, it->path);
      }
      std::swap(*it, running.back());
      running.pop_back();
    } else if (!running.empty() && pick(0, 1) == 0) {
      Seq& seq = running[pick(0, static_cast<int>(running.size()) - 1)];
      cache.insert(seq.space, seq.tokens, seq.table, /*may_replace=*/false, seq.path);
    } else {
      Seq seq{.space = pick(0, 1) == 0 ? "" : "x", .tokens = {}, .table = {}, .path = {}};
      seq.tokens.resize(pick(1, 12));
      for (int32_t& token : seq.tokens) token = pick(0, 1);
      seq.path = cache.match(seq.space, seq.tokens, 100, seq.table);
      num_hits += seq.path.num_pages;
      for (int p = 0; p < seq.path.num_pages; ++p) {
        const Tokens prefix(seq.tokens.begin(), seq.tokens.begin() + (p + 1) * kPageSize);
        ASSERT_EQ(content.at(seq.table[p]), std::pair(seq.space, prefix));
      }
      const int needed = num_pages_for(seq.tokens.size(), kPageSize) - seq.table.num_pages();
      if (needed <= pool.num_free() + pool.num_cached()) {
        const int num_before = cache.num_nodes();
        cache.evict(needed);
        num_evicted += num_before - cache.num_nodes();
        ASSERT_TRUE(seq.table.grow(seq.tokens.size(), kPageSize, pool));
        for (int p = seq.path.num_pages; p < seq.table.num_pages(); ++p) {
          const size_t end = std::min(seq.tokens.size(), static_cast<size_t>(p + 1) * kPageSize);
          content[seq.table[p]] = {seq.space, {seq.tokens.begin(), seq.tokens.begin() + end}};
        }
        running.push_back(std::move(seq));
      }
    }
    std::map<int32_t, int> holders;
    for (const Seq& seq : running) {
      for (int p = 0; p < seq.table.num_pages(); ++p) ++holders[seq.table[p]];
    }
    ASSERT_EQ(static_cast<int>(holders.size()), pool.num_held());
    ASSERT_EQ(pool.num_free() + pool.num_cached() + pool.num_held(), kNumPages);
    ASSERT_LE(pool.num_cached(), cache.num_nodes());
  }
  EXPECT_GT(num_hits, 1000);
  EXPECT_GT(num_evicted, 1000);
  running.clear();
  EXPECT_EQ(pool.num_cached(), cache.num_nodes());
  cache.evict(kNumPages);
  EXPECT_EQ(pool.num_free(), kNumPages) << "every cached page can be evicted";
}

}  // namespace
}  // namespace medley
