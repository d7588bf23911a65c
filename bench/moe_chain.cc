// Times a captured step of a model's MoE layers, base and with adapters, at growing batches.
//
// Usage: bench_moe_chain [gpt-oss-20b|qwen3-30b-a3b] [base|adapters] [replays=N] [batch ...]
// replays=N: how often a step is repeated and compared, to the bit, before it is timed (3).
// Prints one line per batch and mode: microseconds a layer (median of the replays, and their
// spread), bytes a layer must read, the rate, the share of 4.2 TB/s, how routing spread beside the
// expectation of uniform routing, and whether the line counts: both within 5 %.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "chain_model.h"
#include "cuda/check.h"
#include "graph_timer.h"

namespace medley::bench {
namespace {

constexpr int kReplays = 30;
constexpr double kRoofline = 4.2e12;  // bytes a second, read

// Replays must agree to the bit and stay finite.
void check_replays(Chain& chain, cuda::CudaGraph& graph, int count) {
  std::vector<float> first;
  for (int i = 0; i < count; ++i) {
    chain.reset_residual();
    graph.launch(chain.stream());
    const std::vector<float> result = chain.residual();
    for (const float value : result) MEDLEY_CHECK(std::isfinite(value), "the chain overflowed");
    if (i == 0) first = result;
    MEDLEY_CHECK(first == result, "replays differ");
  }
}

struct Batch {
  int rows = 0;
  bool adapters = false;
  int replays = 3;
};

void time_batch(const ChainShape& shape, Chain& chain, const Batch& batch) {
  const int rows = batch.rows;
  const bool adapters = batch.adapters;
  chain.set_batch(rows, adapters);
  chain.run();
  cuda::CudaGraph graph(chain.stream(), [&] { chain.run(); });
  check_replays(chain, graph, batch.replays);
  const Spread spread = chain.spread();
  const Spread uniform = chain.uniform_spread();
  std::vector<float> times;
  GraphTimer timer;
  for (int i = 0; i < kReplays; ++i) {
    chain.reset_residual();
    times.push_back(timer.time_us(graph, chain.stream()) / static_cast<float>(shape.num_layers));
  }
  std::sort(times.begin(), times.end());
  const double us = times[times.size() / 2];
  const double bytes = shape.base_bytes(spread.experts) + shape.adapter_bytes(spread.pairs);
  fmt::print(
      "{:14} batch {:3} {:8}: {:7.2f} us a layer ({:.2f} to {:.2f}), {:7.1f} MB, {:6.0f} GB/s, "
      "{:3.0f} % of roofline; experts {:.1f} of {:.1f}, pairs {:.1f} of {:.1f}: {}\n",
      shape.name, rows, adapters ? "adapters" : "base", us, times.front(), times.back(),
      bytes * 1e-6, bytes / us * 1e-3, 100.0 * bytes / us * 1e6 / kRoofline, spread.experts,
      uniform.experts, spread.pairs, uniform.pairs,
      is_uniform(spread, uniform) ? "counts" : "does not count, routing is uneven");
}

int run(int argc, char** argv) {
  ChainShape shape = gpt_oss_20b();
  std::vector<int> batches;
  std::vector<bool> modes = {false, true};
  int replays = 3;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "qwen3-30b-a3b") == 0) {
      shape = qwen3_30b_a3b();
    } else if (std::strcmp(argv[i], "base") == 0) {
      modes = {false};
      shape.num_adapters = 0;
    } else if (std::strncmp(argv[i], "replays=", 8) == 0) {
      replays = std::atoi(argv[i] + 8);
    } else if (std::strcmp(argv[i], "adapters") == 0) {
      modes = {true};
    } else if (std::strcmp(argv[i], "gpt-oss-20b") != 0) {
      batches.push_back(std::atoi(argv[i]));
    }
  }
  if (batches.empty()) batches = {1, 2, 4, 8, 16, 32, 64};
  Chain chain(shape, *std::max_element(batches.begin(), batches.end()));
  fmt::print("{}, {} layers, {} adapters of rank {}\n", chain.device(), shape.num_layers,
             shape.num_adapters, shape.rank);
  for (const bool adapters : modes) {
    for (const int rows : batches) {
      time_batch(shape, chain, {.rows = rows, .adapters = adapters, .replays = replays});
    }
  }
  return 0;
}

}  // namespace
}  // namespace medley::bench

int main(int argc, char** argv) { return medley::bench::run(argc, argv); }
