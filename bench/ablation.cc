// The split path of the MoE-LoRA kernels, each of its switches on and off, per op and for a whole
// captured step, beside the fused path. GPT-OSS 20B's shapes, 8 adapters of rank 32.
//
// Usage: bench_moe_ablation [sweep] [batch ...]
// Prints one Markdown table per batch: microseconds a layer, the median of three rounds (each the
// median of its replays) with the lowest and highest round; bytes of the weights that a layer must
// read; the rate and its share of 4.2 TB/s. A switch's column has the time with that switch alone
// turned. An op is timed as 24 launches, one a layer, in a graph of its own; what is in the L2 is
// replaced before every replay. A setting is timed only once its outputs are right.
// sweep: times every legal configuration and prints the rows of src/cuda/split_tuned.cc.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "chain_model.h"
#include "cuda/check.h"
#include "cuda/split_ops.h"
#include "graph_timer.h"

namespace medley::bench {
namespace {

using cuda::SplitK;
using cuda::SplitLoraOptions;
using cuda::SplitSwitches;

constexpr int kRounds = 3;
constexpr int kReplays = 15;
constexpr int kSweepReplays = 5;
constexpr double kClear = 0.995;      // below this share of a time, a gain is no noise
constexpr double kRoofline = 4.2e12;  // bytes a second, read
constexpr size_t kFlushBytes = size_t{256} << 20;
// 1 - 2 <x, y> / (|x|^2 + |y|^2) between the split and the fused path's output of a layer: the
// split path rounds gate, up and the output once more.
constexpr double kMostDistance = 3e-5;

struct Setting {
  const char* name;
  SplitSwitches switches;
};

// The best setting, then that with one switch turned.
std::vector<Setting> settings_of(const SplitSwitches& best) {
  const auto with = [&](const auto& change) {
    SplitSwitches switches = best;
    change(switches);
    return switches;
  };
  std::vector<Setting> settings = {{"best", best}};
  if (best.split_k == SplitK::kOff) {
    settings.push_back(
        {"Split-K fixed order", with([](SplitSwitches& s) { s.split_k = SplitK::kFixedOrder; })});
  } else {
    settings.push_back({"Split-K off", with([](SplitSwitches& s) { s.split_k = SplitK::kOff; })});
  }
  settings.push_back(
      {"Split-K atomic", with([](SplitSwitches& s) { s.split_k = SplitK::kAtomic; })});
  settings.push_back({best.swizzle ? "swizzle off" : "swizzle on",
                      with([](SplitSwitches& s) { s.swizzle = !s.swizzle; })});
  settings.push_back({"EVEN_K off", with([](SplitSwitches& s) { s.even_k = false; })});
  settings.push_back({best.fused_add ? "fused add off" : "fused add on",
                      with([](SplitSwitches& s) { s.fused_add = !s.fused_add; })});
  settings.push_back({"tuned off", with([](SplitSwitches& s) { s.tuned = false; })});
  return settings;
}

enum class Stage : uint8_t { kGateUpShrink, kGateUpExpand, kDownShrink, kDownExpand, kStep };
constexpr const char* kStageNames[] = {"gate_up_shrink", "gate_up_expand", "down_shrink",
                                       "down_expand", "whole layer"};
constexpr int kNumStages = std::size(kStageNames);

bool is_shrink(Stage stage) { return stage == Stage::kGateUpShrink || stage == Stage::kDownShrink; }
bool is_expand(Stage stage) { return stage == Stage::kGateUpExpand || stage == Stage::kDownExpand; }

SplitLoraOptions options_of(const Setting& setting) {
  return {.switches = setting.switches, .rank_multiple = 32};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Timer {
 public:
  explicit Timer(Chain& chain)
      : chain_(chain), flush_(cuda::DeviceBuffer::allocate(kFlushBytes).value()) {}

  // Median microseconds a layer of what `work` enqueues, from memory.
  double time(const std::function<void()>& work, int replays) {
    work();
    cuda::CudaGraph graph(chain_.stream(), work);
    std::vector<double> times;
    for (int i = 0; i <= replays; ++i) {
      chain_.reset_residual();
      MEDLEY_CUDA_CHECK(cudaMemsetAsync(flush_.data(), i, kFlushBytes, chain_.stream().get()));
      const double us = timer_.time_us(graph, chain_.stream());
      if (i > 0) times.push_back(us / chain_.shape().num_layers);
    }
    return median(times);
  }

  double time_stage(Stage stage, SplitLoraOptions options, int replays) {
    if (stage == Stage::kStep) {
      chain_.use_split(options, options);
      return time([&] { chain_.run(); }, replays);
    }
    options.parts = is_shrink(stage) ? cuda::kSplitShrink : cuda::kSplitExpand;
    chain_.use_split(options, options);
    if (stage == Stage::kGateUpShrink || stage == Stage::kGateUpExpand) {
      return time([&] { chain_.run_gate_ups(); }, replays);
    }
    return time([&] { chain_.run_downs(); }, replays);
  }

 private:
  Chain& chain_;
  cuda::DeviceBuffer flush_;
  GraphTimer timer_;
};

double distance(const std::vector<float>& x, const std::vector<float>& y) {
  MEDLEY_CHECK_EQ(x.size(), y.size());
  double dot = 0.0;
  double squares = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    MEDLEY_CHECK(std::isfinite(x[i]) && std::isfinite(y[i]), "a layer's output overflowed");
    dot += double{x[i]} * y[i];
    squares += double{x[i]} * x[i] + double{y[i]} * y[i];
  }
  return 1.0 - 2.0 * dot / squares;
}

// The first layer's output must be the fused path's, and whole steps equal to the bit.
void check(Chain& chain, const Setting& setting, const std::vector<float>& fused_output) {
  chain.use_split(options_of(setting), options_of(setting));
  chain.reset_residual();
  chain.run(1);
  const double found = distance(fused_output, chain.last_output());
  MEDLEY_CHECK(found <= kMostDistance,
               fmt::format("{}: {} from the fused path", setting.name, found));
  if (setting.switches.split_k == SplitK::kAtomic) return;
  std::vector<float> first;
  for (int i = 0; i < 3; ++i) {
    chain.reset_residual();
    chain.run();
    const std::vector<float> result = chain.residual();
    if (i == 0) first = result;
    MEDLEY_CHECK(first == result, fmt::format("{}: replays differ", setting.name));
  }
}

std::vector<float> fused_output(Chain& chain) {
  chain.use_fused();
  chain.reset_residual();
  chain.run(1);
  return chain.last_output();
}

// Whether the op sees a difference between the settings.
bool applies(Stage stage, const SplitSwitches& best, const SplitSwitches& turned) {
  if (best.fused_add != turned.fused_add) return !is_shrink(stage);
  return best.split_k == turned.split_k || !is_expand(stage);
}

double stage_bytes(const ChainShape& shape, const Spread& spread, Stage stage) {
  const double rank_bytes = 2.0 * shape.rank * spread.pairs;
  const double inner = shape.moe.intermediate_size;
  switch (stage) {
    case Stage::kGateUpShrink:
    case Stage::kDownExpand:
      return rank_bytes * shape.hidden_size;
    case Stage::kGateUpExpand:
      return rank_bytes * 2.0 * inner;
    case Stage::kDownShrink:
      return rank_bytes * inner;
    case Stage::kStep:
      return shape.base_bytes(spread.experts) + shape.adapter_bytes(spread.pairs);
  }
  return 0.0;
}

std::string with_spread(const std::vector<double>& rounds) {
  const auto [low, high] = std::minmax_element(rounds.begin(), rounds.end());
  return fmt::format("{:.2f} ({:.2f} to {:.2f})", median(rounds), *low, *high);
}

std::string rate(double bytes, double us) {
  return fmt::format("{:.2f} | {:.0f} | {:.0f} %", bytes * 1e-6, bytes / us * 1e-3,
                     100.0 * bytes / us * 1e6 / kRoofline);
}

// Microseconds a layer, by round.
struct Times {
  explicit Times(size_t num_settings) {
    for (auto& stage : split) stage.resize(num_settings);
  }
  std::vector<std::vector<double>> split[kNumStages];  // by setting
  std::vector<double> fused;
  std::vector<double> base;  // the fused path in a step without adapters
};

cuda::SplitLoraProblem gate_up_problem(const Chain& chain) {
  const ChainShape& shape = chain.shape();
  return {.in_size = shape.hidden_size,
          .num_units = (shape.moe.intermediate_size + 7) / 8,
          .max_pairs = chain.num_rows() * shape.moe.experts_per_token,
          .rank_multiple = 32};
}

cuda::SplitLoraProblem down_problem(const Chain& chain) {
  const ChainShape& shape = chain.shape();
  return {.in_size = shape.moe.intermediate_size,
          .num_units = (shape.hidden_size + 15) / 16,
          .max_pairs = chain.num_rows() * shape.moe.experts_per_token,
          .rank_multiple = 32};
}

void print_table(Chain& chain, const std::vector<Setting>& settings, const Times& times) {
  chain.reset_residual();
  chain.run();
  const Spread spread = chain.spread();
  const Spread uniform = chain.uniform_spread();
  fmt::print(
      "\nbatch {}: {:.1f} experts of {:.1f}, {:.1f} pairs of {:.1f} a layer: {}; best: {}\n\n",
      chain.num_rows(), spread.experts, uniform.experts, spread.pairs, uniform.pairs,
      is_uniform(spread, uniform) ? "counts" : "does not count, routing is uneven",
      settings[0].switches.to_string());
  std::string line = "| op | best, us | MB | GB/s | of 4.2 TB/s |";
  for (size_t i = 1; i < settings.size(); ++i) line += fmt::format(" {} |", settings[i].name);
  fmt::print("{}\n|---|---|---|---|---|", line);
  for (size_t i = 1; i < settings.size(); ++i) fmt::print("---|");
  fmt::print("\n");
  const auto print = [&](const char* name, double bytes, const std::vector<double>& rounds) {
    fmt::print("| {} | {} | {} |", name, with_spread(rounds), rate(bytes, median(rounds)));
  };
  for (int stage = 0; stage < kNumStages; ++stage) {
    print(kStageNames[stage], stage_bytes(chain.shape(), spread, Stage(stage)),
          times.split[stage][0]);
    for (size_t i = 1; i < settings.size(); ++i) {
      const auto& rounds = times.split[stage][i];
      fmt::print(" {} |", rounds.empty() ? "" : with_spread(rounds));
    }
    fmt::print("\n");
  }
  print("whole layer, fused path", stage_bytes(chain.shape(), spread, Stage::kStep), times.fused);
  fmt::print("\n");
  print("whole layer, no adapters", chain.shape().base_bytes(spread.experts), times.base);
  fmt::print("\n");
}

void ablate(Chain& chain, Timer& timer, int rows) {
  chain.set_batch(rows, /*adapters=*/true);
  const std::vector<Setting> settings =
      settings_of(cuda::best_split_switches(gate_up_problem(chain)));
  const std::vector<float> expected = fused_output(chain);
  for (const Setting& setting : settings) check(chain, setting, expected);
  Times times(settings.size());
  for (int round = 0; round < kRounds; ++round) {
    chain.use_fused();
    chain.set_batch(rows, /*adapters=*/false);
    times.base.push_back(timer.time([&] { chain.run(); }, kReplays));
    chain.set_batch(rows, /*adapters=*/true);
    times.fused.push_back(timer.time([&] { chain.run(); }, kReplays));
    for (int stage = 0; stage < kNumStages; ++stage) {
      for (size_t i = 0; i < settings.size(); ++i) {
        if (!applies(Stage(stage), settings[0].switches, settings[i].switches)) continue;
        times.split[stage][i].push_back(
            timer.time_stage(Stage(stage), options_of(settings[i]), kReplays));
      }
    }
  }
  print_table(chain, settings, times);
}

using Shrinks = std::map<int, cuda::SplitShrinkConfig>;

// The fastest shrink for each number of splits.
Shrinks best_shrinks(Timer& timer, Stage stage, const cuda::SplitLoraProblem& problem) {
  std::map<int, std::pair<double, cuda::SplitShrinkConfig>> best;
  for (const SplitK split_k : {SplitK::kOff, SplitK::kFixedOrder}) {
    for (const auto& config :
         cuda::legal_split_shrinks(problem, {.split_k = split_k, .swizzle = false})) {
      const double us =
          timer.time_stage(stage, {.rank_multiple = 32, .shrink = config}, kSweepReplays);
      const auto found = best.find(config.num_splits);
      if (found == best.end() || us < found->second.first) best[config.num_splits] = {us, config};
    }
  }
  Shrinks configs;
  for (const auto& [splits, timed] : best) configs[splits] = timed.second;
  return configs;
}

cuda::SplitExpandConfig best_expand(Timer& timer, Stage stage,
                                    const cuda::SplitLoraProblem& problem) {
  double best_us = std::numeric_limits<double>::max();
  cuda::SplitExpandConfig best;
  for (const auto& config : cuda::legal_split_expands(problem, {.swizzle = false})) {
    const double us =
        timer.time_stage(stage, {.rank_multiple = 32, .expand = config}, kSweepReplays);
    if (us < best_us) best_us = us, best = config;
  }
  return best;
}

// Shrinks and expands are tuned alone. The switches, and how many splits, whose sums expand must
// add, are decided by the time of the step.
void sweep(Chain& chain, Timer& timer, int rows) {
  chain.set_batch(rows, /*adapters=*/true);
  chain.use_fused();
  chain.run();
  const cuda::SplitLoraProblem problems[] = {gate_up_problem(chain), down_problem(chain)};
  const Shrinks shrinks[] = {best_shrinks(timer, Stage::kGateUpShrink, problems[0]),
                             best_shrinks(timer, Stage::kDownShrink, problems[1])};
  const cuda::SplitExpandConfig expands[] = {best_expand(timer, Stage::kGateUpExpand, problems[0]),
                                             best_expand(timer, Stage::kDownExpand, problems[1])};
  const auto time_step = [&](int splits, int group, bool fused_add) {
    SplitLoraOptions options[2];
    for (int i = 0; i < 2; ++i) {
      options[i] = {.rank_multiple = 32, .shrink = shrinks[i].at(splits), .expand = expands[i]};
      options[i].shrink->group = options[i].expand->group = group;
      options[i].expand->fused_add = fused_add;
    }
    chain.use_split(options[0], options[1]);
    const double us = timer.time([&] { chain.run(); }, kReplays);
    fmt::print("// batch {}, {} splits, group {}, fused add {}: {:.2f} us a layer\n", rows, splits,
               group, fused_add, us);
    return us;
  };
  std::map<int, double> us_of_splits;
  for (const auto& [splits, shrink] : shrinks[0]) us_of_splits[splits] = time_step(splits, 1, true);
  const double whole_us = us_of_splits.at(1);
  us_of_splits.erase(1);
  const auto best =
      std::min_element(us_of_splits.begin(), us_of_splits.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool split_k = best->second < whole_us;
  const int splits = split_k ? best->first : 1;
  const double best_us = std::min(best->second, whole_us);
  const bool fused_add = time_step(splits, 1, false) > best_us;
  const bool swizzle = time_step(splits, cuda::kSplitGroup, true) < kClear * best_us;
  for (int i = 0; i < 2; ++i) {
    const cuda::SplitShrinkConfig& whole = shrinks[i].at(1);
    const cuda::SplitShrinkConfig& split = shrinks[i].at(best->first);
    fmt::print("    {{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}},\n", problems[i].in_size,
               problems[i].num_units, problems[i].max_pairs, whole.num_warps, whole.rank_step,
               split.num_warps, split.rank_step, split.num_splits, expands[i].num_warps,
               expands[i].repeats, split_k, swizzle, fused_add);
  }
}

int run(int argc, char** argv) {
  std::vector<int> batches;
  bool sweeping = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "sweep") == 0) {
      sweeping = true;
    } else {
      batches.push_back(std::atoi(argv[i]));
    }
  }
  if (batches.empty()) batches = {1, 8, 16, 32, 64};
  Chain chain(gpt_oss_20b(), *std::max_element(batches.begin(), batches.end()));
  Timer timer(chain);
  fmt::print("{}, {} layers, {} adapters of rank {}\n", chain.device(), chain.shape().num_layers,
             chain.shape().num_adapters, chain.shape().rank);
  for (const int rows : batches) {
    if (sweeping) {
      sweep(chain, timer, rows);
    } else {
      ablate(chain, timer, rows);
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace medley::bench

int main(int argc, char** argv) { return medley::bench::run(argc, argv); }
