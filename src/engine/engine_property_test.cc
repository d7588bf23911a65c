#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/engine_core.h"
#include "engine/testing/fake_adapter_store.h"
#include "engine/testing/fake_executor.h"
#include "engine/testing/fake_model.h"

namespace medley {
namespace {

using testing::fake_answer;
using testing::FakeAdapterStore;
using testing::FakeAnswer;
using testing::FakeExecutor;

constexpr int64_t kVocab = 40;  // few: end tokens come often

struct Scenario {
  EngineOptions options;
  ExecutorDesc desc;
  int num_requests = 0;
  int arrivals_in_8_turns = 0;
  int abort_percent = 0;
};

// Random requests meet a random engine: page counts near the least that works, small budgets, few
// slots, adapters that load late or fail, prompts that go on from others' and from their answers,
// adapters whose content changes.
class RandomRun {
 public:
  explicit RandomRun(uint32_t seed)
      : rng_(seed),
        scenario_(make_scenario()),
        store_(scenario_.options.max_loras),
        executor_(scenario_.desc, &store_),
        core_(scenario_.options, executor_, &store_) {
    for (int i = 0; i < 5; ++i) {
      const bool is_late = pick(0, 1) == 1;
      store_.add(fmt::format("a{}", i), is_late ? pick(1, 40) : 0);
    }
    store_.add("broken", pick(0, 20), /*fails=*/true);
  }

  void run() {
    // Generous, but far below what a starved request would take: every request may need all pages
    // for itself, and be preempted.
    const int max_turns = 1000 + scenario_.num_requests * 200;
    int turn = 0;
    while (static_cast<int>(requests_.size()) < scenario_.num_requests || core_.num_open() > 0) {
      ASSERT_LT(turn++, max_turns) << core_.num_open() << " requests do not end";
      arrive();
      if (pick(1, 100) <= scenario_.abort_percent && !requests_.empty()) {
        core_.abort(pick(1, static_cast<int>(requests_.size())));
      }
      store_.tick();
      if (pick(1, 40) == 1) replace_adapter();
      core_.step();
      collect();
      check_invariants();
      if (::testing::Test::HasFatalFailure()) return;
    }
    core_.step();
    core_.step();
    EXPECT_EQ(core_.pages().num_held(), 0);
    EXPECT_EQ(store_.num_pins(), 0);
    EXPECT_LE(executor_.max_rows_seen(), scenario_.options.max_num_batched_tokens);
    EXPECT_EQ(core_.num_left_queue(), requests_.size());
    check_answers();
  }

  EngineStats stats() const { return core_.stats(); }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution(low, high)(rng_); }

  Scenario make_scenario() {
    Scenario s;
    s.options.max_num_seqs = pick(1, 9);
    s.options.max_num_batched_tokens = s.options.max_num_seqs + pick(0, 20);
    s.options.max_model_len = pick(8, 60);
    s.options.max_loras = pick(1, 4);
    s.options.eos_token_ids = {0, 1};
    s.options.enable_prefix_caching = pick(0, 3) > 0;
    s.desc.page_size = pick(1, 8);
    const int pages_for_one =
        static_cast<int>((s.options.max_model_len + s.desc.page_size - 1) / s.desc.page_size);
    s.desc.num_pages = pages_for_one + pick(0, 2 * pages_for_one);
    s.desc.step = {.max_rows = s.options.max_num_batched_tokens,
                   .max_seqs = s.options.max_num_seqs,
                   .max_pages = s.desc.num_pages + pick(0, s.desc.num_pages)};
    s.desc.vocab_size = kVocab;
    s.num_requests = pick(20, 80);
    s.arrivals_in_8_turns = pick(1, 12);
    s.abort_percent = pick(0, 1) * pick(0, 25);
    return s;
  }

  void arrive() {
    for (int i = 0; i < 8; ++i) {
      if (static_cast<int>(requests_.size()) == scenario_.num_requests) return;
      if (pick(1, 64) > scenario_.arrivals_in_8_turns) continue;
      Request r = {.id = requests_.size() + 1};
      const int num_prompt = pick(1, static_cast<int>(scenario_.options.max_model_len) - 1);
      const int adapter = pick(0, 9);
      if (adapter < 5) r.adapter = fmt::format("a{}", adapter / 2 * 2);
      if (adapter == 5) r.adapter = "a1";
      if (adapter == 6) r.adapter = "broken";
      if (!requests_.empty() && pick(0, 3) > 0) {
        const Request& other = requests_[pick(0, static_cast<int>(requests_.size()) - 1)];
        const std::vector<int32_t>& answer = tokens_[other.id];
        r.prompt = other.prompt;
        r.prompt.insert(r.prompt.end(), answer.begin(), answer.end());
        if (static_cast<int>(r.prompt.size()) > num_prompt) r.prompt.resize(num_prompt);
        if (pick(0, 3) > 0) r.adapter = other.adapter;
      }
      while (static_cast<int>(r.prompt.size()) < num_prompt)
        r.prompt.push_back(pick(0, kVocab - 1));
      r.sampling.max_tokens = pick(1, 70);
      r.sampling.min_tokens = pick(0, 1) * pick(0, 10);
      r.sampling.ignore_eos = pick(0, 3) == 0;
      r.sampling.seed = pick(0, 3);
      if (pick(0, 2) == 0) r.sampling.num_prompt_logprobs = pick(0, 2);
      if (pick(0, 2) == 0) r.sampling.presence_penalty = 0.25f;
      if (pick(0, 2) == 0) r.sampling.logit_bias = {{pick(0, kVocab - 1), 1.0f}};
      if (pick(0, 3) == 0) r.sampling.stop_token_ids = {pick(0, kVocab - 1)};
      requests_.push_back(r);
      first_content_[r.id] = contents_[r.adapter].size();
      core_.add(r);
    }
  }

  void replace_adapter() {
    const std::string name = fmt::format("a{}", pick(0, 4));
    contents_[name].push_back(fmt::format("{}, version {}", name, contents_[name].size() + 2));
    store_.replace(name, contents_[name].back());
  }

  void collect() {
    for (TokenEvent& event : core_.take_events()) {
      ASSERT_FALSE(ends_.contains(event.request_id)) << "an event after the end";
      for (const PromptLogprob& scored : event.prompt_logprobs) {
        scored_[event.request_id].push_back(scored.token.token_id);
      }
      if (event.token_id) tokens_[event.request_id].push_back(*event.token_id);
      if (!event.finish) continue;
      ends_[event.request_id] = *event.finish;
      last_content_[event.request_id] = contents_[requests_[event.request_id - 1].adapter].size();
    }
  }

  void check_invariants() {
    const PagePool& pages = core_.pages();
    ASSERT_EQ(pages.num_free() + pages.num_cached() + pages.num_held(), scenario_.desc.num_pages);
    if (!scenario_.options.enable_prefix_caching) {
      ASSERT_EQ(pages.num_cached(), 0);
    }
    ASSERT_GE(pages.num_held(), static_cast<int>(executor_.pages_in_flight().size()))
        << "a launched step uses a page that is free";
    const EngineStats stats = core_.stats();
    ASSERT_EQ(stats.num_running + stats.num_waiting, core_.num_open());
    ASSERT_EQ(core_.num_open() + ends_.size(), requests_.size());
  }

  void check_answers() {
    for (const Request& r : requests_) {
      ASSERT_TRUE(ends_.contains(r.id));
      const FinishReason finish = ends_[r.id];
      std::vector<int32_t>& tokens = tokens_[r.id];
      if (finish == FinishReason::kError) {
        EXPECT_EQ(r.adapter, "broken");
        EXPECT_TRUE(tokens.empty());
        continue;
      }
      FakeAnswer answer = answer_beginning_with(r, tokens);
      if (finish == FinishReason::kAbort) {
        ASSERT_LE(tokens.size(), answer.tokens.size());
        answer.tokens.resize(tokens.size());
      } else {
        EXPECT_EQ(finish, answer.finish);
        EXPECT_NE(r.adapter, "broken");
      }
      EXPECT_EQ(tokens, answer.tokens);
      if (r.sampling.num_prompt_logprobs < 0) {
        EXPECT_TRUE(scored_[r.id].empty());
      } else if (!tokens.empty()) {
        EXPECT_TRUE(std::ranges::equal(scored_[r.id], std::span(r.prompt).subspan(1)));
      }
    }
  }

  // That of the content that the request's adapter had when it entered, which is one of those
  // between its submission and its end.
  FakeAnswer answer_beginning_with(Request r, const std::vector<int32_t>& tokens) {
    const std::vector<std::string>& contents = contents_[r.adapter];
    const std::string name = r.adapter;
    FakeAnswer answer;
    for (size_t i = first_content_[r.id]; i <= last_content_[r.id]; ++i) {
      r.adapter = i == 0 ? name : contents[i - 1];
      answer = fake_answer(r, scenario_.options, kVocab);
      if (tokens.size() > answer.tokens.size()) continue;
      if (std::ranges::equal(tokens, std::span(answer.tokens).first(tokens.size()))) break;
    }
    return answer;
  }

  std::mt19937 rng_;
  Scenario scenario_;
  FakeAdapterStore store_;
  FakeExecutor executor_;
  EngineCore core_;
  std::vector<Request> requests_;
  std::map<RequestId, std::vector<int32_t>> tokens_;
  std::map<RequestId, std::vector<int32_t>> scored_;
  std::map<RequestId, FinishReason> ends_;
  std::map<std::string, std::vector<std::string>> contents_;  // of an adapter, after its first
  std::map<RequestId, size_t> first_content_, last_content_;  // how many of them there were
};

TEST(EngineProperty, EveryRequestEndsOnceWithItsOwnAnswer) {
  uint64_t num_preemptions = 0, num_hits = 0, num_queries = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomRun run(seed);
    run.run();
    num_preemptions += run.stats().num_preemptions;
    num_hits += run.stats().num_prefix_cache_hits;
    num_queries += run.stats().num_prefix_cache_queries;
    if (HasFailure()) return;
  }
  EXPECT_GT(num_preemptions, 100u) << "the scenarios no longer run out of pages";
  EXPECT_GT(num_hits * 20, num_queries) << "the scenarios no longer share prefixes";
  std::printf("%lu preemptions, %lu of %lu tokens found\n", num_preemptions, num_hits, num_queries);
}

// Floods that never end on two adapters, one slot; the third adapter's and base's requests must get
// through within a bound that does not depend on the floods.
TEST(EngineProperty, NobodyStarvesBesideAFlood) {
  const EngineOptions options = {
      .max_num_seqs = 4, .max_num_batched_tokens = 16, .max_model_len = 40, .max_loras = 2};
  const ExecutorDesc desc = {.step = {.max_rows = 16, .max_seqs = 4, .max_pages = 20},
                             .num_pages = 20,
                             .page_size = 4,
                             .vocab_size = kVocab};
  FakeAdapterStore store(2);
  for (const char* name : {"flood1", "flood2", "rare"}) store.add(name);
  FakeExecutor executor(desc, &store);
  EngineCore core(options, executor, &store);
  RequestId next_id = 1;
  const auto add = [&](const std::string& adapter, int num_prompt) {
    Request r = {.id = next_id++, .adapter = adapter};
    r.prompt.assign(num_prompt, 5);
    r.sampling.max_tokens = 12;
    core.add(r);
    return r.id;
  };
  std::map<RequestId, int> added_at;
  int num_ended = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    if (core.num_open() < 200) {
      add("flood1", 6);
      add("flood2", 11);
    }
    if (turn % 100 == 50) {
      added_at[add("rare", 25)] = turn;
      added_at[add("", 28)] = turn;
    }
    core.step();
    for (const TokenEvent& event : core.take_events()) {
      const auto it = added_at.find(event.request_id);
      if (it == added_at.end() || !event.finish) continue;
      ++num_ended;
      EXPECT_LT(turn - it->second, 150) << "request " << it->first;
    }
  }
  EXPECT_GE(num_ended, 56);
}

}  // namespace
}  // namespace medley
