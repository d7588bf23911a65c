#include "apps/bench_lengths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include <nlohmann/json.hpp>

#include "apps/bench_report.h"

namespace medley::apps {
namespace {

constexpr int kLater = 3;  // requests per length after the first
constexpr int kOutputTokens = 2;

Result<double> ttft_ms(std::vector<int32_t> prompt, const std::string& adapter,
                       BenchTarget& target) {
  MEDLEY_TRY_ASSIGN(
      const RequestRecord record,
      answer_of(target,
                {.adapter = adapter, .prompt = std::move(prompt), .output_len = kOutputTokens},
                "a request"));
  return ttft_ms(record);
}

double ratio_of(const LengthSample& sample) {
  return sample.first / percentiles_of(sample.later).p50;
}

}  // namespace

Result<std::vector<int>> new_lengths(const WorkloadFlags& flags, int count) {
  const auto spread = static_cast<int>(flags.input_len * flags.range_ratio);
  const int least = std::max(1, flags.input_len - spread);
  const int num_others = flags.input_len + spread - least;  // without input_len
  if (num_others < count) {
    return invalid_argument(
        fmt::format("--new-lengths {}: --input-len {} with --range-ratio {} gives {} other lengths",
                    count, flags.input_len, flags.range_ratio, num_others),
        "--new-lengths");
  }
  std::vector<int> lengths;
  for (int i = 0; i < count; ++i) {
    const int64_t at = count == 1 ? 0 : int64_t{i} * (num_others - 1) / (count - 1);
    const int length = least + static_cast<int>(at);
    lengths.push_back(length < flags.input_len ? length : length + 1);
  }
  std::mt19937_64 engine(flags.workload_seed);
  std::ranges::shuffle(lengths, engine);
  return lengths;
}

Result<std::vector<LengthSample>> run_lengths(const WorkloadFlags& flags,
                                              const std::string& adapter, Workload& workload,
                                              BenchTarget& target) {
  MEDLEY_TRY_ASSIGN(const std::vector<int> lengths, new_lengths(flags, flags.num_new_lengths));
  std::vector<LengthSample> samples;
  for (const int length : lengths) {
    LengthSample sample = {.num_tokens = length};
    MEDLEY_TRY_ASSIGN(sample.first, ttft_ms(workload.prompt(length), adapter, target));
    for (int i = 0; i < kLater; ++i) {
      MEDLEY_TRY_ASSIGN(const double later, ttft_ms(workload.prompt(length), adapter, target));
      sample.later.push_back(later);
    }
    samples.push_back(std::move(sample));
  }
  target.records().take();
  return samples;
}

LengthSummary summarise(const std::vector<LengthSample>& samples) {
  std::vector<double> first, later, ratios;
  for (const LengthSample& sample : samples) {
    first.push_back(sample.first);
    later.push_back(percentiles_of(sample.later).p50);
    ratios.push_back(ratio_of(sample));
  }
  const Percentiles ratio = percentiles_of(ratios);
  return {.first_p50 = percentiles_of(first).p50,
          .later_p50 = percentiles_of(later).p50,
          .ratio_p50 = ratio.p50,
          .ratio_p90 = ratio.p90,
          .ratio_max = ratio.max};
}

void print(const std::vector<LengthSample>& samples) {
  const LengthSummary s = summarise(samples);
  for (const LengthSample& sample : samples) {
    fmt::print("  {:6} tokens: first {:8.2f} ms, later {:8.2f} ms, ratio {:.3f}\n",
               sample.num_tokens, sample.first, percentiles_of(sample.later).p50, ratio_of(sample));
  }
  fmt::print(
      "{} prompt lengths never seen before: first {:.2f} ms, later {:.2f} ms (medians); ratio of "
      "each length: p50 {:.3f}, p90 {:.3f}, max {:.3f}\n",
      samples.size(), s.first_p50, s.later_p50, s.ratio_p50, s.ratio_p90, s.ratio_max);
  std::fflush(stdout);
}

std::string to_json(const std::vector<LengthSample>& samples) {
  nlohmann::json results = nlohmann::json::array();
  for (const LengthSample& sample : samples) {
    results.push_back({{"num_tokens", sample.num_tokens},
                       {"first_ttft_ms", sample.first},
                       {"later_ttft_ms", sample.later}});
  }
  return results.dump(2);
}

}  // namespace medley::apps
