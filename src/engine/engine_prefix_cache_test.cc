#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/testing/engine_harness.h"

namespace medley {
namespace {

using testing::engine_options;
using testing::executor_desc;
using testing::Harness;
using testing::request;

Request continuation(RequestId id, const Request& r, const std::vector<int32_t>& output) {
  Request next = request(id, 0, 3, r.adapter);
  next.prompt = r.prompt;
  next.prompt.insert(next.prompt.end(), output.begin(), output.end());
  return next;
}

// Pages of 4. The first computes 9 + 6 tokens, but not the last; the second turn of the chat finds
// 12 of them.
TEST(EnginePrefixCache, APrefixIsComputedOnce) {
  Harness h;
  const Request first = request(1, 9, 6);
  h.core.add(first);
  h.run();
  EXPECT_EQ(h.core.pages().num_cached(), 3);
  const Request second = continuation(2, first, h.tokens[1]);
  h.core.add(second);
  h.run();
  h.expect_answer(second);
  EXPECT_EQ(h.core.stats().num_prefix_cache_queries, 9u + 15u);
  EXPECT_EQ(h.core.stats().num_prefix_cache_hits, 12u);
  EXPECT_EQ(h.ends[1].num_cached_tokens, 0);
  EXPECT_EQ(h.ends[2].num_cached_tokens, 12);
  EXPECT_EQ(h.core.stats().num_prompt_tokens, 9u + 3u);
  EXPECT_EQ(h.core.stats().num_free_pages, 64) << "cached pages can be had";
  h.expect_all_released();
}

// The prompt is whole pages and all of them are there; its last token still has to be computed, and
// that in a page of the sequence's own.
TEST(EnginePrefixCache, OneTokenAtLeastIsComputed) {
  Harness h;
  Request r = request(1, 8, 3);
  h.core.add(r);
  h.run();
  r.id = 2;
  h.core.add(r);
  h.run();
  h.expect_answer(r);
  EXPECT_EQ(h.core.stats().num_prefix_cache_hits, 4u);
}

// A running sequence's full pages can be used while it goes on.
TEST(EnginePrefixCache, PagesInUseAreShared) {
  Harness h(engine_options(), executor_desc(/*num_pages=*/16));
  Request r = request(1, 33, 12);
  h.core.add(r);
  for (int i = 0; i < 4; ++i) h.step();
  Request other = r;
  other.id = 2;
  h.core.add(other);
  for (int i = 0; i < 2; ++i) h.step();
  EXPECT_EQ(h.core.stats().num_running, 2) << "twice 12 pages are more than there are";
  h.run();
  h.expect_answer(r);
  h.expect_answer(other);
  EXPECT_EQ(h.core.stats().num_prefix_cache_hits, 32u);
  h.expect_all_released();
}

TEST(EnginePrefixCache, CachedPagesMakeRoomBeforeAnybodyIsPreempted) {
  Harness h(engine_options(), executor_desc(/*num_pages=*/16));
  for (RequestId id = 1; id <= 6; ++id) {
    const Request r = request(id, 30, 20);
    h.core.add(r);
    h.run();
    h.expect_answer(r);
  }
  EXPECT_EQ(h.core.stats().num_preemptions, 0u);
  EXPECT_GT(h.core.pages().num_cached(), 0);
}

TEST(EnginePrefixCache, AdaptersDoNotShareWithBaseNorWithEachOther) {
  Harness h;
  RequestId id = 0;
  for (const int num_hits : {0, 8}) {
    for (const char* adapter : {"", "a", "b"}) {
      const uint64_t before = h.core.stats().num_prefix_cache_hits;
      Request r = request(1, 10, 4, adapter);
      r.id = ++id;
      h.core.add(r);
      h.run();
      h.expect_answer(r);
      EXPECT_EQ(h.core.stats().num_prefix_cache_hits - before, static_cast<uint64_t>(num_hits));
    }
  }
}

// "a" gets new content while a request runs on the old one; "b" gets the old content of "a".
TEST(EnginePrefixCache, PagesBelongToAnAdaptersContentNotToItsName) {
  Harness h;
  Request running = request(1, 10, 30, "a");
  h.core.add(running);
  for (int i = 0; i < 3; ++i) h.step();
  h.store.replace("a", "new");
  h.store.replace("b", "a");
  const auto num_hits_of = [&](RequestId id, const std::string& name, const std::string& content) {
    const uint64_t before = h.core.stats().num_prefix_cache_hits;
    Request r = request(1, 10, 4, name);
    r.id = id;
    h.core.add(r);
    h.run();
    r.adapter = content;
    h.expect_answer(r);
    return h.core.stats().num_prefix_cache_hits - before;
  };
  EXPECT_EQ(num_hits_of(2, "a", "new"), 0u);
  EXPECT_EQ(num_hits_of(3, "b", "a"), 8u);
  EXPECT_EQ(num_hits_of(4, "a", "new"), 8u);
  h.expect_answer(running);
}

TEST(EnginePrefixCache, APreemptedSequenceFindsItsPages) {
  EngineOptions options = engine_options();
  const auto num_steps = [&](bool enable_prefix_caching) {
    options.enable_prefix_caching = enable_prefix_caching;
    options.max_num_batched_tokens = 8;
    Harness h(options, executor_desc(/*num_pages=*/16));
    const Request r1 = request(1, 8, 30), r2 = request(2, 8, 52);
    h.core.add(r1);
    h.core.add(r2);
    h.run();
    h.expect_answer(r1);
    h.expect_answer(r2);
    EXPECT_EQ(h.core.stats().num_preemptions, 1u);
    EXPECT_EQ(h.core.stats().num_prefix_cache_hits, 0u) << "recomputation is not counted";
    return h.core.stats().num_steps;
  };
  EXPECT_LT(num_steps(true), num_steps(false));
}

// Their rows have to be computed.
TEST(EnginePrefixCache, ScoredPromptsAreNotLookedUp) {
  Harness h;
  Request r = request(1, 20, 2);
  h.core.add(r);
  h.run();
  r.id = 2;
  r.sampling.num_prompt_logprobs = 1;
  h.core.add(r);
  h.run();
  h.expect_answer(r);
  h.expect_prompt_logprobs(r);
  EXPECT_EQ(h.core.stats().num_prefix_cache_queries, 20u);
}

TEST(EnginePrefixCache, WithoutAPrefixCacheNothingIsKept) {
  EngineOptions options = engine_options();
  options.enable_prefix_caching = false;
  Harness h(options);
  Request r = request(1, 20, 2);
  for (r.id = 1; r.id <= 2; ++r.id) h.core.add(r);
  h.run();
  EXPECT_EQ(h.core.pages().num_free(), 64);
  EXPECT_EQ(h.core.stats().num_prefix_cache_queries, 0u);
  EXPECT_FALSE(h.core.stats().prefix_caching);
}

}  // namespace
}  // namespace medley
