#include "apps/bench_workload.h"

#include <algorithm>
#include <cmath>

#include <CLI/CLI.hpp>

namespace medley::apps {

void add_workload_flags(CLI::App& app, WorkloadFlags& flags) {
  const std::string group = "Traffic";
  app.add_option("--input-len", flags.input_len, "tokens of each prompt")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->group(group);
  app.add_option("--range-ratio", flags.range_ratio,
                 "prompts have (1 - r) to (1 + r) times as many, evenly spread")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  app.add_option("--output-len", flags.output_len, "tokens of each answer")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->group(group);
  app.add_option("--concurrency", flags.concurrency, "requests at once; several: one run each")
      ->check(CLI::Range(1, 4096))
      ->expected(-1)
      ->capture_default_str()
      ->group(group);
  app.add_option("--num-requests", flags.num_requests, "requests of a run [the concurrency]")
      ->check(CLI::Range(1, 1 << 24))
      ->group(group);
  app.add_option("--request-rate", flags.request_rate,
                 "requests a second, at equal distances [the next as soon as one ends]")
      ->check(CLI::Range(0.0, 1e6))
      ->group(group);
  app.add_option("--adapter-mix", flags.adapter_mix, "base, round-robin, uniform or zipf")
      ->check(CLI::IsMember({"base", "round-robin", "uniform", "zipf"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--zipf-exponent", flags.zipf_exponent, "the i-th adapter's share is i to the -e")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str()
      ->group(group);
  app.add_option("--workload-seed", flags.workload_seed, "chooses prompts and adapters")
      ->capture_default_str()
      ->group(group);
  app.add_option("--warm-up-requests", flags.num_warm_up,
                 "short requests before the first run [every adapter once]")
      ->check(CLI::Range(1, 1 << 20))
      ->group(group);
  app.add_option("--json", flags.json, "file for the results")->group(group);
}

void add_probe_flags(CLI::App& app, WorkloadFlags& flags) {
  const std::string group = "Instead of the traffic";
  CLI::Option* cold =
      app.add_option(
             "--cold-adapter", flags.cold_adapter,
             "one request for an adapter that is only in host memory (host) or only on disk "
             "(disk) comes while the other users of the concurrency decode; the same once "
             "it is loaded; first tokens, and the others' times between tokens")
          ->check(CLI::IsMember({"host", "disk"}))
          ->group(group);
  app.add_option("--repeats", flags.num_repeats, "of --cold-adapter")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str()
      ->group(group);
  app.add_option("--new-lengths", flags.num_new_lengths,
                 "so many prompt lengths (see --range-ratio), one request at a time: the first of "
                 "its length against later ones")
      ->check(CLI::Range(1, 1 << 20))
      ->excludes(cold)
      ->group(group);
}

int num_requests_of(const WorkloadFlags& flags, int concurrency) {
  return flags.num_requests > 0 ? flags.num_requests : concurrency;
}

int64_t due_ns(const WorkloadFlags& flags, int i, int64_t start_ns) {
  if (flags.request_rate <= 0) return start_ns;
  return start_ns + static_cast<int64_t>(i * 1e9 / flags.request_rate);
}

WorkloadFlags warm_up_of(const WorkloadFlags& flags, int num_adapters) {
  WorkloadFlags warm_up = flags;
  warm_up.output_len = std::min(flags.output_len, 4);
  warm_up.num_requests = flags.num_warm_up > 0 ? flags.num_warm_up : std::max(num_adapters, 1);
  warm_up.request_rate = 0.0;
  if (flags.adapter_mix != "base") warm_up.adapter_mix = "round-robin";
  warm_up.workload_seed = ~flags.workload_seed;  // a server may keep the prompts it has seen
  return warm_up;
}

Workload::Workload(const WorkloadFlags& flags, int num_adapters, int64_t vocab_size)
    : flags_(flags),
      num_adapters_(flags.adapter_mix == "base" ? 0 : num_adapters),
      engine_(flags.workload_seed),
      token_(0, static_cast<int32_t>(vocab_size - 1)) {
  std::vector<double> shares(static_cast<size_t>(num_adapters_ > 0 ? num_adapters_ : 1), 1.0);
  if (flags.adapter_mix == "zipf") {
    for (size_t i = 0; i < shares.size(); ++i) {
      shares[i] = std::pow(static_cast<double>(i + 1), -flags.zipf_exponent);
    }
  }
  adapter_ = std::discrete_distribution<int>(shares.begin(), shares.end());
}

int Workload::next_adapter() {
  if (num_adapters_ == 0) return -1;
  if (flags_.adapter_mix == "round-robin") return static_cast<int>(num_taken_++ % num_adapters_);
  return adapter_(engine_);
}

std::vector<int32_t> Workload::next_prompt() {
  const auto spread = static_cast<int>(flags_.input_len * flags_.range_ratio);
  std::uniform_int_distribution<int> length(std::max(1, flags_.input_len - spread),
                                            flags_.input_len + spread);
  return prompt(length(engine_));
}

std::vector<int32_t> Workload::prompt(int num_tokens) {
  std::vector<int32_t> prompt(num_tokens);
  for (int32_t& token : prompt) token = token_(engine_);
  return prompt;
}

}  // namespace medley::apps
