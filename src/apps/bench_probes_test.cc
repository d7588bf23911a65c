#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "apps/bench_cold.h"
#include "apps/bench_lengths.h"
#include "base/clock.h"

namespace medley::apps {
namespace {

constexpr int64_t kMs = 1'000'000;

// All tokens of a request are there at once, with times of 10 ms from each to the next: the first
// of a request for the cold adapter 100 ms after it was sent, 40 ms once it is loaded; of others
// after 10 ms. The cold adapter is usable after 60 ms.
class FakeTarget final : public BenchTarget {
 public:
  Result<int> send(BenchRequest request) override {
    const int64_t sent = now_ns();
    const int record = records_.add(
        {.num_prompt_tokens = static_cast<int>(request.prompt.size()), .sent_ns = sent});
    if (request.adapter == cold_adapter()) {
      const bool cold = std::exchange(is_cold_, false);
      if (cold) usable_ns_ = sent + 60 * kMs;
      const int64_t first = sent + (cold ? 100 : 40) * kMs;
      tell(record, first, request.output_len);
    } else {
      adapters_.push_back(request.adapter);
      tell(record, sent + 10 * kMs, request.output_len);
    }
    prompts_.push_back(request.prompt.size());
    return record;
  }
  void stop(int request) override { stopped_.insert(request); }
  BenchRecords& records() override { return records_; }
  std::string cold_adapter() const override { return "cold"; }
  Result<void> make_cold(ColdTier tier) override {
    if (tier == ColdTier::kHost) return unsupported("no host here");
    is_cold_ = true;
    return {};
  }
  std::optional<int64_t> usable_ns() override { return usable_ns_; }

  std::vector<std::string> adapters_;
  std::vector<size_t> prompts_;
  std::set<int> stopped_;

 private:
  void tell(int record, int64_t first_ns, int num_tokens) {
    std::vector<RecordUpdate> updates;
    for (int i = 0; i < num_tokens; ++i) {
      updates.push_back({.request = record, .token_ns = first_ns + i * 10 * kMs});
    }
    updates.push_back({.request = record, .ended = true});
    records_.update(updates);
  }

  BenchRecords records_;
  bool is_cold_ = false;
  std::optional<int64_t> usable_ns_;
};

TEST(TokenGaps, ThoseThatEndWithin) {
  const RequestRecord record = {.token_ns = {10 * kMs, 20 * kMs, 50 * kMs, 60 * kMs}};
  EXPECT_EQ(token_gaps_ms(record, 0, 100 * kMs), (std::vector<double>{10, 30, 10}));
  EXPECT_EQ(token_gaps_ms(record, 20 * kMs, 50 * kMs), (std::vector<double>{30}));
  EXPECT_TRUE(token_gaps_ms(record, 20 * kMs, 49 * kMs).empty());
}

TEST(ColdSummary, MediansAndTheChangeOfTheOthersP99) {
  ColdRun run;
  for (const double cold : {50.0, 60.0, 100.0}) {
    run.samples.push_back({.cold_ttft = cold,
                           .warm_ttft = cold - 20,
                           .load = 30.0,
                           .others_quiet = {10.0, 10.0},
                           .others_load = {10.0, 12.0}});
  }
  const ColdSummary summary = summarise(run);
  EXPECT_DOUBLE_EQ(summary.cold_ttft.p50, 60.0);
  EXPECT_DOUBLE_EQ(summary.cold_ttft.max, 100.0);
  EXPECT_DOUBLE_EQ(summary.added_ms, 20.0);
  EXPECT_DOUBLE_EQ(summary.load.p50, 30.0);
  EXPECT_DOUBLE_EQ(summary.others_load.max, 12.0);
  EXPECT_NEAR(summary.p99_change, 0.2, 1e-9);
}

TEST(RunCold, TimesTheColdRequestAndTheSameOnceWarm) {
  FakeTarget target;
  const WorkloadFlags flags = {
      .input_len = 7, .output_len = 100, .cold_adapter = "disk", .num_repeats = 2};
  Workload workload(flags, 2, 50);
  // Nobody decodes meanwhile.
  const ColdRun run = run_cold(flags, 1, {"a", "b"}, workload, target).value();
  ASSERT_EQ(run.samples.size(), 2u);
  for (const ColdSample& sample : run.samples) {
    EXPECT_DOUBLE_EQ(sample.cold_ttft, 100.0);
    EXPECT_DOUBLE_EQ(sample.warm_ttft, 40.0);
    EXPECT_DOUBLE_EQ(*sample.load, 60.0);
    EXPECT_TRUE(sample.others_quiet.empty());
  }
  EXPECT_EQ(target.prompts_, (std::vector<size_t>{7, 7, 7, 7}));
}

TEST(RunCold, UsersThatEndTooEarlyAreAnError) {
  FakeTarget target;
  const WorkloadFlags flags = {
      .input_len = 7, .output_len = 100, .cold_adapter = "disk", .num_repeats = 1};
  Workload workload(flags, 2, 50);
  const Result<ColdRun> run = run_cold(flags, 4, {"a", "b"}, workload, target);
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.error().param, "--output-len");
  EXPECT_EQ(target.adapters_, (std::vector<std::string>{"a", "b", "a"}));
  EXPECT_EQ(target.stopped_.size(), 3u);
}

TEST(RunCold, ATierThatCantBeHadIsAnError) {
  FakeTarget target;
  const WorkloadFlags flags = {.input_len = 7, .cold_adapter = "host", .num_repeats = 1};
  Workload workload(flags, 0, 50);
  EXPECT_EQ(run_cold(flags, 1, {}, workload, target).error().message, "no host here");
}

TEST(NewLengths, DifferWithinTheRangeWithoutTheWarmUps) {
  const WorkloadFlags flags = {.input_len = 100, .range_ratio = 0.1};
  std::vector<int> lengths = new_lengths(flags, 20).value();
  std::ranges::sort(lengths);
  std::vector<int> want;
  for (int length = 90; length <= 110; ++length) {
    if (length != 100) want.push_back(length);
  }
  EXPECT_EQ(lengths, want);
  std::vector<int> few = new_lengths(flags, 3).value();
  std::ranges::sort(few);
  EXPECT_EQ(few, (std::vector<int>{90, 99, 110}));
  EXPECT_EQ(new_lengths(flags, 21).error().param, "--new-lengths");
}

TEST(RunLengths, TheFirstAgainstTheMedianOfTheLater) {
  FakeTarget target;
  const WorkloadFlags flags = {.input_len = 100, .range_ratio = 0.5, .num_new_lengths = 2};
  Workload workload(flags, 0, 50);
  const std::vector<LengthSample> samples = run_lengths(flags, "", workload, target).value();
  ASSERT_EQ(samples.size(), 2u);
  for (const LengthSample& sample : samples) EXPECT_DOUBLE_EQ(sample.first, 10.0);
  std::ranges::sort(target.prompts_);
  EXPECT_EQ(target.prompts_, (std::vector<size_t>{50, 50, 50, 50, 150, 150, 150, 150}));

  const LengthSummary summary =
      summarise(std::vector<LengthSample>{{.num_tokens = 1, .first = 11, .later = {10, 5, 90}},
                                          {.num_tokens = 2, .first = 30, .later = {20}}});
  EXPECT_DOUBLE_EQ(summary.ratio_p50, (1.1 + 1.5) / 2);
  EXPECT_DOUBLE_EQ(summary.ratio_max, 1.5);
  EXPECT_DOUBLE_EQ(summary.first_p50, 20.5);
  EXPECT_DOUBLE_EQ(summary.later_p50, 15.0);
}

}  // namespace
}  // namespace medley::apps
