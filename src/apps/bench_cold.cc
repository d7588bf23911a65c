#include "apps/bench_cold.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace medley::apps {
namespace {

constexpr int kSettleTokens = 8;  // of each user, before anything is timed
constexpr int kQuietTokens = 64;
constexpr int kProbeTokens = 4;

// The users that decode meanwhile.
class Users {
 public:
  explicit Users(BenchTarget& target) : target_(target) {}
  ~Users() {
    for (const int user : users_) target_.stop(user);
    for (const int user : users_) target_.records().wait_for_end(user);
  }
  Users(const Users&) = delete;
  Users& operator=(const Users&) = delete;

  Result<void> add(BenchRequest request) {
    MEDLEY_TRY_ASSIGN(const int user, target_.send(std::move(request)));
    users_.push_back(user);
    return {};
  }
  // Until each has got so many tokens from now on.
  void decode(int num_tokens) {
    std::vector<int> until;
    for (const int user : users_) {
      until.push_back(target_.records().wait(user, 0).num_tokens + num_tokens);
    }
    for (size_t i = 0; i < users_.size(); ++i) target_.records().wait(users_[i], until[i]);
  }
  std::vector<double> gaps_of_first_ms(int64_t from_ns, int64_t to_ns) {
    if (users_.empty()) return {};
    return token_gaps_ms(target_.records().wait(users_.front(), 0), from_ns, to_ns);
  }
  std::vector<double> gaps_ms(int64_t from_ns, int64_t to_ns) {
    std::vector<double> gaps;
    for (const int user : users_) {
      const std::vector<double> of_user =
          token_gaps_ms(target_.records().wait(user, 0), from_ns, to_ns);
      gaps.insert(gaps.end(), of_user.begin(), of_user.end());
    }
    return gaps;
  }
  // When the first one got its first token from then on.
  int64_t next_token_ns(int64_t from_ns) {
    if (users_.empty()) return from_ns;
    const std::vector<int64_t> times = target_.records().wait(users_.front(), 0).token_ns;
    const auto next = std::ranges::lower_bound(times, from_ns);
    return next == times.end() ? from_ns : *next;
  }
  // An error when one has nothing left to decode.
  Result<void> check_running(int output_len) {
    for (const int user : users_) {
      const RequestRecord record = target_.records().wait(user, 0);
      if (!record.error.empty()) return internal_error(record.error);
      if (!record.ended) continue;
      return invalid_argument(
          fmt::format("the answers of {} tokens of the users that decode meanwhile ended before "
                      "the request for the cold adapter; --output-len must be larger",
                      output_len),
          "--output-len");
    }
    return {};
  }

 private:
  BenchTarget& target_;
  std::vector<int> users_;
};

Result<RequestRecord> probe(Workload& workload, BenchTarget& target) {
  return answer_of(target,
                   {.adapter = target.cold_adapter(),
                    .prompt = workload.next_prompt(),
                    .output_len = kProbeTokens},
                   "the cold adapter's request");
}

Result<ColdSample> run_once(const WorkloadFlags& flags, int concurrency,
                            const std::vector<std::string>& adapters, Workload& workload,
                            BenchTarget& target) {
  MEDLEY_TRY(target.make_cold(flags.cold_adapter == "host" ? ColdTier::kHost : ColdTier::kDisk));
  Users users(target);
  for (int i = 0; i + 1 < concurrency; ++i) {
    MEDLEY_TRY(users.add({.adapter = adapters.empty() ? "" : adapters[i % adapters.size()],
                          .prompt = workload.next_prompt(),
                          .output_len = flags.output_len}));
  }
  users.decode(kSettleTokens);
  const int64_t quiet_ns = now_ns();
  users.decode(kQuietTokens);
  ColdSample sample = {.others_quiet = users.gaps_ms(quiet_ns, now_ns())};

  MEDLEY_TRY_ASSIGN(const RequestRecord cold, probe(workload, target));
  sample.cold_ttft = ttft_ms(cold);
  sample.others_cold = users.gaps_ms(cold.sent_ns, cold.token_ns.front());
  sample.steps_cold = users.gaps_of_first_ms(cold.sent_ns, cold.token_ns.front());
  if (const std::optional<int64_t> usable_ns = target.usable_ns()) {
    sample.load = ms_between(cold.sent_ns, *usable_ns);
    // With the step in which the load ended, but not that of the request's prompt.
    const int64_t end_ns = std::min(users.next_token_ns(*usable_ns), cold.token_ns.front() - 1);
    sample.others_load = users.gaps_ms(cold.sent_ns, end_ns);
  }
  users.decode(kSettleTokens);
  MEDLEY_TRY_ASSIGN(const RequestRecord warm, probe(workload, target));
  sample.warm_ttft = ttft_ms(warm);
  sample.others_warm = users.gaps_ms(warm.sent_ns, warm.token_ns.front());
  MEDLEY_TRY(users.check_running(flags.output_len));
  return sample;
}

// All samples' values of one kind.
template <class Get>
Percentiles over(const std::vector<ColdSample>& samples, const Get& get) {
  std::vector<double> values;
  for (const ColdSample& sample : samples) get(sample, values);
  return percentiles_of(std::move(values));
}
Percentiles over(const std::vector<ColdSample>& samples, double ColdSample::* member) {
  return over(samples, [&](const ColdSample& sample, std::vector<double>& values) {
    values.push_back(sample.*member);
  });
}
Percentiles over(const std::vector<ColdSample>& samples, std::vector<double> ColdSample::* member) {
  return over(samples, [&](const ColdSample& sample, std::vector<double>& values) {
    values.insert(values.end(), (sample.*member).begin(), (sample.*member).end());
  });
}

}  // namespace

std::vector<double> token_gaps_ms(const RequestRecord& record, int64_t from_ns, int64_t to_ns) {
  std::vector<double> gaps;
  const std::vector<int64_t>& times = record.token_ns;
  for (size_t i = 1; i < times.size(); ++i) {
    if (times[i] <= from_ns || times[i] > to_ns) continue;
    gaps.push_back(ms_between(times[i - 1], times[i]));
  }
  return gaps;
}

Result<ColdRun> run_cold(const WorkloadFlags& flags, int concurrency,
                         const std::vector<std::string>& adapters, Workload& workload,
                         BenchTarget& target) {
  ColdRun run = {
      .tier = flags.cold_adapter, .concurrency = concurrency, .input_len = flags.input_len};
  for (int i = 0; i < flags.num_repeats; ++i) {
    MEDLEY_TRY_ASSIGN(ColdSample sample, run_once(flags, concurrency, adapters, workload, target));
    run.samples.push_back(std::move(sample));
  }
  target.records().take();
  return run;
}

ColdSummary summarise(const ColdRun& run) {
  ColdSummary summary = {
      .cold_ttft = over(run.samples, &ColdSample::cold_ttft),
      .warm_ttft = over(run.samples, &ColdSample::warm_ttft),
      .load = over(run.samples,
                   [](const ColdSample& sample, std::vector<double>& values) {
                     if (sample.load) values.push_back(*sample.load);
                   }),
      .others_quiet = over(run.samples, &ColdSample::others_quiet),
      .others_load = over(run.samples, &ColdSample::others_load),
      .others_cold = over(run.samples, &ColdSample::others_cold),
      .others_warm = over(run.samples, &ColdSample::others_warm),
  };
  summary.added_ms = summary.cold_ttft.p50 - summary.warm_ttft.p50;
  if (summary.others_quiet.p99 > 0 && summary.others_load.p99 > 0) {
    summary.p99_change = summary.others_load.p99 / summary.others_quiet.p99 - 1.0;
  }
  return summary;
}

void print(const ColdRun& run) {
  const ColdSummary s = summarise(run);
  const auto line = [](const char* name, const Percentiles& p) {
    fmt::print("  {:40} p50 {:9.2f}   p99 {:9.2f}   max {:9.2f}\n", name, p.p50, p.p99, p.max);
  };
  fmt::print("{}: cold adapter ({}), {} users decode, {} times, prompts of {} tokens\n", run.mode,
             run.tier, run.concurrency - 1, run.samples.size(), run.input_len);
  line("time to first token, ms: warm", s.warm_ttft);
  line("                         cold", s.cold_ttft);
  fmt::print("  cold - warm, medians, ms: {:.2f}\n", s.added_ms);
  if (s.load.max > 0) line("sent until usable, ms", s.load);
  if (run.concurrency > 1) {
    line("others, between tokens, ms: quiet", s.others_quiet);
    if (s.load.max > 0) {
      line("   while the adapter loads", s.others_load);
      fmt::print("   p99 against quiet: {:+.1f} %\n", 100.0 * s.p99_change);
    }
    line("   until the cold request's first token", s.others_cold);
    line("   until the warm request's first token", s.others_warm);
  }
  std::fflush(stdout);
}

std::string to_json(const std::vector<ColdRun>& runs) {
  const auto percentiles = [](const Percentiles& p) {
    return nlohmann::json{{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}, {"max", p.max}};
  };
  nlohmann::json results = nlohmann::json::array();
  for (const ColdRun& run : runs) {
    const ColdSummary s = summarise(run);
    nlohmann::json samples = nlohmann::json::array();
    for (const ColdSample& sample : run.samples) {
      samples.push_back({{"cold_ttft_ms", sample.cold_ttft},
                         {"warm_ttft_ms", sample.warm_ttft},
                         {"load_ms", sample.load.value_or(0.0)},
                         {"steps_ms", sample.steps_cold}});
    }
    results.push_back({{"mode", run.mode},
                       {"cold_adapter", run.tier},
                       {"concurrency", run.concurrency},
                       {"input_len", run.input_len},
                       {"num_repeats", run.samples.size()},
                       {"warm_ttft_ms", percentiles(s.warm_ttft)},
                       {"cold_ttft_ms", percentiles(s.cold_ttft)},
                       {"load_ms", percentiles(s.load)},
                       {"others_itl_quiet_ms", percentiles(s.others_quiet)},
                       {"others_itl_load_ms", percentiles(s.others_load)},
                       {"others_itl_cold_ms", percentiles(s.others_cold)},
                       {"others_itl_warm_ms", percentiles(s.others_warm)},
                       {"samples", samples}});
  }
  return results.dump(2);
}

}  // namespace medley::apps
