#include "apps/bench_report.h"

#include <gtest/gtest.h>

#include "apps/bench_workload.h"

namespace medley::apps {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(Percentile, LinearBetweenNeighbours) {
  EXPECT_EQ(percentile({}, 0.5), 0.0);
  EXPECT_EQ(percentile({7.0}, 0.99), 7.0);
  EXPECT_DOUBLE_EQ(percentile({1.0, 2.0, 4.0}, 0.5), 2.0);
  EXPECT_DOUBLE_EQ(percentile({1.0, 2.0, 4.0}, 0.75), 3.0);
  EXPECT_DOUBLE_EQ(percentile({1.0, 2.0, 4.0}, 1.0), 4.0);
}

TEST(Summary, CountsWhatClientsSaw) {
  BenchRun run = {.input_len = 10, .output_len = 3, .seconds = 2.0};
  run.requests.push_back({.num_prompt_tokens = 12,
                          .sent_ns = 0,
                          .token_ns = {100 * kMs, 110 * kMs, 130 * kMs},
                          .num_tokens = 3});
  run.requests.push_back({.num_prompt_tokens = 8,
                          .sent_ns = 50 * kMs,
                          .token_ns = {70 * kMs},
                          .num_tokens = 1,
                          .error = "gone"});
  const BenchSummary summary = summarise(run);
  EXPECT_EQ(summary.num_completed, 1);
  EXPECT_EQ(summary.num_failed, 1);
  EXPECT_EQ(summary.num_output_tokens, 4);
  EXPECT_DOUBLE_EQ(summary.output_tokens_per_s, 2.0);
  EXPECT_DOUBLE_EQ(summary.input_tokens_per_s, 10.0);
  EXPECT_DOUBLE_EQ(summary.ttft_ms.p50, 60.0);
  EXPECT_DOUBLE_EQ(summary.itl_ms.p50, 15.0);
  EXPECT_DOUBLE_EQ(summary.user_tokens_per_s, 1000.0 / 15.0);
  EXPECT_DOUBLE_EQ(summary.e2e_ms.max, 130.0);
}

TEST(Workload, AdaptersTakeTurnsOrFollowTheirShares) {
  Workload turns({.adapter_mix = "round-robin"}, 3, 100);
  for (const int expected : {0, 1, 2, 0, 1}) EXPECT_EQ(turns.next_adapter(), expected);
  Workload base({.adapter_mix = "base"}, 3, 100);
  EXPECT_EQ(base.next_adapter(), -1);
  Workload none({.adapter_mix = "uniform"}, 0, 100);
  EXPECT_EQ(none.next_adapter(), -1);
  Workload zipf({.adapter_mix = "zipf", .zipf_exponent = 1.0}, 4, 100);
  std::vector<int> counts(4);
  constexpr int kDraws = 25'000;
  for (int i = 0; i < kDraws; ++i) ++counts[zipf.next_adapter()];
  // 1, 1/2, 1/3, 1/4 of 25/12.
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(counts[i], kDraws * 12.0 / 25.0 / (i + 1), 400) << i;
}

TEST(Workload, TheWarmUpHasEveryAdapterOnceAndPromptsOfItsOwn) {
  const WorkloadFlags flags = {
      .input_len = 9, .output_len = 100, .request_rate = 5.0, .adapter_mix = "zipf"};
  const WorkloadFlags warm_up = warm_up_of(flags, 3);
  EXPECT_EQ(num_requests_of(warm_up, 8), 3);
  EXPECT_EQ(warm_up.output_len, 4);
  EXPECT_EQ(due_ns(warm_up, 2, 10), 10);
  Workload workload(warm_up, 3, 1000);
  for (const int expected : {0, 1, 2}) EXPECT_EQ(workload.next_adapter(), expected);
  EXPECT_NE(workload.prompt(9), Workload(flags, 3, 1000).prompt(9));
  EXPECT_EQ(warm_up_of({.adapter_mix = "base"}, 3).adapter_mix, "base");
  EXPECT_EQ(num_requests_of(warm_up_of({.num_warm_up = 7}, 3), 8), 7);
}

TEST(Workload, PromptsAreOfTheLengthAndRepeatable) {
  Workload first({.input_len = 50}, 0, 1000);
  Workload second({.input_len = 50}, 0, 1000);
  const auto prompt = first.next_prompt();
  EXPECT_EQ(prompt.size(), 50u);
  EXPECT_EQ(prompt, second.next_prompt());
  EXPECT_NE(prompt, first.next_prompt());
  for (const int32_t token : prompt) {
    EXPECT_GE(token, 0);
    EXPECT_LT(token, 1000);
  }
}

TEST(Workload, LengthsSpreadEvenly) {
  Workload workload({.input_len = 100, .range_ratio = 0.5}, 0, 1000);
  constexpr int kDraws = 4000;
  double sum = 0;
  size_t least = 1000, most = 0;
  for (int i = 0; i < kDraws; ++i) {
    const size_t length = workload.next_prompt().size();
    sum += static_cast<double>(length);
    least = std::min(least, length);
    most = std::max(most, length);
  }
  EXPECT_EQ(least, 50u);
  EXPECT_EQ(most, 150u);
  EXPECT_NEAR(sum / kDraws, 100.0, 2.0);
}

}  // namespace
}  // namespace medley::apps
