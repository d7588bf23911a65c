// The engine on the CPU backend, in float32, against what transformers and PEFT answer for the same
// files.

#include <gtest/gtest.h>

#include <cmath>

#include "served.h"

namespace medley {
namespace {

using namespace testing;

constexpr double kLogprobTolerance = 1e-3;
// Where the reference's two best tokens are closer than twice the tolerance, either is right.
constexpr double kMinGap = 2 * kLogprobTolerance;

struct Tally {
  int compared = 0;
  int total = 0;
  double worst = 0;
};

// Tokens equal and log-probabilities within tolerance, up to the first position where the reference
// itself is undecided.
void compare(const Case& c, const Answer& answer, Tally& tally) {
  ASSERT_EQ(answer.error, "") << c.name;
  EXPECT_EQ(*answer.finish, FinishReason::kLength) << c.name;
  const auto tokens = c.prompt["tokens"].get<std::vector<int32_t>>();
  const auto gaps = c.prompt["gaps"].get<std::vector<double>>();
  const auto top_ids = c.prompt["top5_ids"].get<std::vector<std::vector<int32_t>>>();
  const auto top_logprobs = c.prompt["top5_logprobs"].get<std::vector<std::vector<double>>>();
  ASSERT_EQ(answer.tokens.size(), tokens.size()) << c.name;
  tally.total += static_cast<int>(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (gaps[i] <= kMinGap) return;
    ASSERT_EQ(answer.tokens[i], tokens[i]) << c.name << " token " << i << ", gap " << gaps[i];
    ASSERT_EQ(answer.tops[i].size(), 5u) << c.name;
    for (int j = 0; j < 5; ++j) {
      // A tie in the list may swap ids; the value at each place may not move.
      const double off = std::abs(answer.tops[i][j].logprob - top_logprobs[i][j]);
      tally.worst = std::max(tally.worst, off);
      ASSERT_LE(off, kLogprobTolerance)
          << c.name << " token " << i << " place " << j << ": id " << answer.tops[i][j].token_id
          << ", the reference has " << top_ids[i][j];
    }
    ASSERT_NEAR(answer.logprobs[i], top_logprobs[i][0], kLogprobTolerance) << c.name;
    ++tally.compared;
  }
}

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, AloneAndMixedEqualTheReference) {
  Served served(golden_dir() / GetParam());
  if (HasFailure()) return;
  std::vector<Answer> alone;
  Tally tally;
  for (const Case& c : served.cases()) {
    alone.push_back(served.wait(served.submit(c)));
    compare(c, alone.back(), tally);
  }
  std::vector<RequestId> ids;
  for (const Case& c : served.cases()) ids.push_back(served.submit(c));
  for (size_t i = 0; i < ids.size(); ++i) {
    const Answer mixed = served.wait(ids[i]);
    EXPECT_EQ(mixed.tokens, alone[i].tokens) << served.cases()[i].name;
    EXPECT_EQ(mixed.logprobs, alone[i].logprobs)
        << served.cases()[i].name << ": mixed with others, not bitwise what it is alone";
  }
  std::printf("%s: %zu prompts, %d of %d positions compared, worst log-probability error %.2e\n",
              GetParam().c_str(), ids.size(), tally.compared, tally.total, tally.worst);
  EXPECT_GE(tally.compared, tally.total * 9 / 10);
}

// No choice of the model's comes into it, so every position counts, near ties too.
// All at once, twice: the second time nothing is computed of a prompt but what is behind its last
// full page.
TEST_P(Golden, CachedPrefixesChangeNoBit) {
  constexpr size_t kPageSize = 16;
  Served plain(golden_dir() / GetParam());
  Served caching(golden_dir() / GetParam(), {.enable_prefix_caching = true});
  if (HasFailure()) return;
  std::vector<Answer> expected;
  for (const Case& c : plain.cases()) expected.push_back(plain.wait(plain.submit(c)));
  EXPECT_EQ(plain.stats().num_prefix_cache_hits, 0u);
  for (const bool is_again : {false, true}) {
    const uint64_t num_hits_before = caching.stats().num_prefix_cache_hits;
    uint64_t num_cached = 0;
    std::vector<RequestId> ids;
    for (const Case& c : caching.cases()) ids.push_back(caching.submit(c));
    for (size_t i = 0; i < ids.size(); ++i) {
      const Case& c = caching.cases()[i];
      const Answer answer = caching.wait(ids[i]);
      EXPECT_EQ(answer.tokens, expected[i].tokens) << c.name;
      EXPECT_EQ(answer.logprobs, expected[i].logprobs) << c.name;
      num_cached += (c.prompt["ids"].size() - 1) / kPageSize * kPageSize;
    }
    if (!is_again) continue;
    EXPECT_EQ(caching.stats().num_prefix_cache_hits - num_hits_before, num_cached);
    EXPECT_GT(num_cached, 0u);
  }
}

TEST_P(Golden, PromptLogprobsEqualTheReference) {
  Served served(golden_dir() / GetParam());
  if (HasFailure()) return;
  std::vector<RequestId> read_ids, made_ids;
  for (const Case& c : served.cases()) {
    read_ids.push_back(served.submit_to_read(c));
    made_ids.push_back(served.submit(c));
  }
  double worst = 0;
  for (size_t n = 0; n < read_ids.size(); ++n) {
    const Case& c = served.cases()[n];
    const Answer read = served.wait(read_ids[n]), made = served.wait(made_ids[n]);
    const auto tokens = c.prompt["tokens"].get<std::vector<int32_t>>();
    const auto logprobs = c.prompt["logprobs"].get<std::vector<double>>();
    const auto top_logprobs = c.prompt["top5_logprobs"].get<std::vector<std::vector<double>>>();
    const size_t num_ids = c.prompt["ids"].size();
    ASSERT_EQ(read.prompt_logprobs.size(), num_ids + tokens.size() - 2) << c.name;
    bool as_made =
        true;  // so far the engine made the same tokens: then it says the same, bit by bit
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const PromptLogprob& scored = read.prompt_logprobs[num_ids - 1 + i];
      ASSERT_EQ(scored.token.token_id, tokens[i]) << c.name;
      worst = std::max(worst, std::abs(scored.token.logprob - logprobs[i]));
      ASSERT_NEAR(scored.token.logprob, logprobs[i], kLogprobTolerance) << c.name << " token " << i;
      ASSERT_EQ(scored.top.size(), 5u);
      for (int j = 0; j < 5; ++j) {
        ASSERT_NEAR(scored.top[j].logprob, top_logprobs[i][j], kLogprobTolerance)
            << c.name << " token " << i << " place " << j;
      }
      as_made = as_made && made.tokens[i] == tokens[i];
      if (!as_made) continue;
      EXPECT_EQ(scored.token.logprob, made.logprobs[i]) << c.name << " token " << i;
      EXPECT_EQ(scored.rank, 1);
    }
  }
  std::printf("%s: %zu answers read, worst log-probability error %.2e\n", GetParam().c_str(),
              read_ids.size(), worst);
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, ::testing::ValuesIn(golden_models()), golden_test_name);

}  // namespace
}  // namespace medley
