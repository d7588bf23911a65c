#include "apps/bench_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>

#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace medley::apps {
namespace {

constexpr int64_t kProgressEveryNs = 200'000'000;

nlohmann::json to_json(const Percentiles& p) {
  return {{"mean", p.mean}, {"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}, {"max", p.max}};
}

std::string line(const char* name, const Percentiles& p) {
  return fmt::format("  {:24} p50 {:9.2f}   p90 {:9.2f}   p99 {:9.2f}   max {:9.2f}\n", name, p.p50,
                     p.p90, p.p99, p.max);
}

std::string describe(const BenchRun& run, const BenchSummary& summary) {
  const std::string adapters =
      run.num_adapters == 0 || run.adapter_mix == "base"
          ? "base model"
          : fmt::format("{} adapters, {}", run.num_adapters, run.adapter_mix);
  const std::string arrivals =
      run.request_rate > 0 ? fmt::format("{} a second", run.request_rate) : "closed loop";
  std::string text =
      fmt::format("{}: concurrency {}, {} requests of {} + {} tokens, {}, {}: {:.2f} s\n", run.mode,
                  run.concurrency, run.requests.size(), run.input_len, run.output_len, adapters,
                  arrivals, run.seconds);
  if (summary.num_failed > 0) {
    text += fmt::format("  {} requests failed", summary.num_failed);
    for (const RequestRecord& request : run.requests) {
      if (request.error.empty()) continue;
      text += ", the first with: " + request.error;
      break;
    }
    text += "\n";
  }
  text += line("time to first token, ms", summary.ttft_ms);
  text += line("between tokens, ms", summary.itl_ms);
  text += line("whole request, ms", summary.e2e_ms);
  text += fmt::format("  tokens/s: {:.1f} per user (1 / median), {:.1f} in all; prompt {:.1f}\n",
                      summary.user_tokens_per_s, summary.output_tokens_per_s,
                      summary.input_tokens_per_s);
  if (run.num_steps > 0) text += fmt::format("  steps: {}\n", run.num_steps);
  if (run.routing.num_layers > 0) {
    text += fmt::format("  a decode step's layer, mean: {:.1f} experts, {:.1f} of an adapter's\n",
                        run.routing.experts, run.routing.expert_adapters);
  }
  return text;
}

std::string to_json(const std::vector<BenchRun>& runs) {
  nlohmann::json results = nlohmann::json::array();
  for (const BenchRun& run : runs) {
    const BenchSummary s = summarise(run);
    results.push_back({{"mode", run.mode},
                       {"concurrency", run.concurrency},
                       {"request_rate", run.request_rate},
                       {"input_len", run.input_len},
                       {"output_len", run.output_len},
                       {"adapter_mix", run.adapter_mix},
                       {"num_adapters", run.num_adapters},
                       {"num_requests", run.requests.size()},
                       {"num_completed", s.num_completed},
                       {"num_failed", s.num_failed},
                       {"seconds", run.seconds},
                       {"num_steps", run.num_steps},
                       {"num_output_tokens", s.num_output_tokens},
                       {"output_tokens_per_s", s.output_tokens_per_s},
                       {"input_tokens_per_s", s.input_tokens_per_s},
                       {"user_tokens_per_s", s.user_tokens_per_s},
                       {"ttft_ms", to_json(s.ttft_ms)},
                       {"itl_ms", to_json(s.itl_ms)},
                       {"e2e_ms", to_json(s.e2e_ms)}});
    if (run.routing.num_layers == 0) continue;
    results.back()["experts_per_layer"] = run.routing.experts;
    results.back()["expert_adapters_per_layer"] = run.routing.expert_adapters;
  }
  return results.dump(2);
}

}  // namespace

double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0.0;
  const double at = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(std::floor(at));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

Percentiles percentiles_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  return {.mean = std::accumulate(values.begin(), values.end(), 0.0) /
                  static_cast<double>(values.size()),
          .p50 = percentile(values, 0.5),
          .p90 = percentile(values, 0.9),
          .p99 = percentile(values, 0.99),
          .max = values.back()};
}

BenchSummary summarise(const BenchRun& run) {
  BenchSummary summary;
  std::vector<double> ttft, itl, e2e;
  int64_t num_prompt_tokens = 0;
  for (const RequestRecord& request : run.requests) {
    const bool complete = request.error.empty() && request.num_tokens == run.output_len;
    ++(complete ? summary.num_completed : summary.num_failed);
    const std::vector<int64_t>& times = request.token_ns;
    num_prompt_tokens += request.num_prompt_tokens;
    summary.num_output_tokens += request.num_tokens;
    if (times.empty()) continue;
    ttft.push_back(ttft_ms(request));
    e2e.push_back(ms_between(request.sent_ns, times.back()));
    for (size_t i = 1; i < times.size(); ++i) {
      itl.push_back(ms_between(times[i - 1], times[i]));
    }
  }
  summary.ttft_ms = percentiles_of(std::move(ttft));
  summary.itl_ms = percentiles_of(std::move(itl));
  summary.e2e_ms = percentiles_of(std::move(e2e));
  if (run.seconds > 0) {
    summary.output_tokens_per_s = static_cast<double>(summary.num_output_tokens) / run.seconds;
    summary.input_tokens_per_s = static_cast<double>(num_prompt_tokens) / run.seconds;
  }
  if (summary.itl_ms.p50 > 0) summary.user_tokens_per_s = 1e3 / summary.itl_ms.p50;
  return summary;
}

BenchRun start_run(const char* mode, const WorkloadFlags& flags, int concurrency,
                   int num_adapters) {
  return {.mode = mode,
          .concurrency = concurrency,
          .request_rate = flags.request_rate,
          .input_len = flags.input_len,
          .output_len = flags.output_len,
          .adapter_mix = flags.adapter_mix,
          .num_adapters = num_adapters};
}

void set_seconds(BenchRun& run, int64_t start_ns) {
  int64_t end_ns = start_ns;
  for (const RequestRecord& request : run.requests) {
    if (!request.token_ns.empty()) end_ns = std::max(end_ns, request.token_ns.back());
  }
  run.seconds = static_cast<double>(end_ns - start_ns) * 1e-9;
}

void print(const BenchRun& run) {
  fmt::print("{}", describe(run, summarise(run)));
  std::fflush(stdout);
}

Result<void> write_json(const std::string& path, const std::string& text) {
  if (path.empty()) return {};
  std::ofstream file(path);
  file << text << "\n";
  file.close();
  if (!file) return invalid_argument(fmt::format("cannot write {}", path), "--json");
  return {};
}

Result<void> finish(const std::vector<BenchRun>& runs, const std::string& json) {
  MEDLEY_TRY(write_json(json, to_json(runs)));
  for (const BenchRun& run : runs) {
    if (summarise(run).num_failed > 0) return internal_error("not all requests were answered");
  }
  return {};
}

BenchProgress::BenchProgress(int total) : total_(total), is_terminal_(isatty(STDERR_FILENO) != 0) {}

BenchProgress::~BenchProgress() {
  if (is_terminal_) fmt::print(stderr, "\r\x1b[K");
}

void BenchProgress::update(int done, int running) {
  if (!is_terminal_ || (now_ns() - last_ns_ < kProgressEveryNs && done < total_)) return;
  last_ns_ = now_ns();
  fmt::print(stderr, "\r\x1b[K{} of {} requests, {} running", done, total_, running);
}

}  // namespace medley::apps
