#include "cuda/dense_gemm.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace medley::cuda {
namespace {

// Half of an SM's shared memory, and all of it, less what the driver keeps and the kernel's static
// use.
constexpr int kHalfSharedBytes = 108 * 1024;
constexpr int kWholeSharedBytes = 220 * 1024;
constexpr int kXSlots = 2;
constexpr int kMaxXChunks = 3;
constexpr int kWantedSlots = 3;
constexpr int kMinSlots = 2;
constexpr int kClusters[] = {1, 2, 4};
// What a further block of a cluster, and a missing warp, cost: of a block's time.
constexpr double kClusterCost = 0.02;
constexpr double kWarpCost = 0.05;
constexpr int kWantedWarps = 6;
constexpr int kVeryFewRows = 2;

int ceil_div(int value, int divisor) { return (value + divisor - 1) / divisor; }

// Groups of 8 rows of a tile.
int select_halves(int rows) { return rows <= 8 ? 1 : rows <= 16 ? 2 : rows <= 32 ? 4 : 8; }

// Units of the largest share.
int share_units(const DenseGemmProblem& problem, int cluster) {
  const int shares = std::max(1, problem.num_sms / cluster);
  return ceil_div(problem.layout.num_units, std::min(problem.layout.num_units, shares));
}

// The columns of a matrix with few units are split among more blocks. The number of rows does not
// enter, so a row's sums have one order in every batch.
int select_cluster(const DenseGemmProblem& problem) {
  const int chunks =
      ceil_div(problem.layout.padded_cols, kChunkBlocks * block_cols(problem.layout.format));
  int best = 1;
  double least = 0.0;
  for (const int cluster : kClusters) {
    const int units = share_units(problem, cluster);
    // Only blocks with one unit a warp can join their sums.
    if (cluster > 1 && (units > max_dense_warps(/*halves=*/1) || cluster > chunks)) continue;
    const double cost = units / static_cast<double>(cluster) *
                        (1.0 + kClusterCost * (cluster - 1)) *
                        (1.0 + kWarpCost * std::max(0, kWantedWarps - units));
    if (cluster > 1 && cost >= least) continue;
    best = cluster;
    least = cost;
  }
  return best;
}

// Few large copies of activations; of a few rows they are small anyway, and the weights come first.
// False where there is no room for the fewest slots.
bool lay_out_rings(DenseGemmConfig& config, int units, int num_bytes) {
  const int slot_bytes = config.num_warps * kWeightSlotBytes;
  config.x_slots = kXSlots;
  for (const int wanted : {config.halves <= 2 ? kWantedSlots : kMinSlots, kMinSlots}) {
    for (config.x_chunks = kMaxXChunks; config.x_chunks > 0; --config.x_chunks) {
      const int other_bytes = kXSlots * x_slot_bytes(config.halves, config.x_chunks) +
                              join_bytes(config.cluster, units, config.halves) +
                              config.shared_s_bytes;
      config.num_slots = std::min(kMaxDenseSlots, (num_bytes - other_bytes) / slot_bytes);
      config.shared_bytes = static_cast<size_t>(config.num_slots) * slot_bytes + other_bytes;
      if (config.num_slots >= wanted) return true;
    }
  }
  return false;
}

// Few rows have few adapters: small shares still find a warp each.
int shrink_splits(const MatrixLayout& layout, int rows) {
  const int wanted = rows <= kVeryFewRows ? 6 : 10;  // blocks of 32 columns of a share
  const int blocks = layout.padded_cols / block_cols(layout.format);
  const int most = std::min(kMaxShrinkSplits, kMaxShrinkPartials / (8 * select_halves(rows)));
  return std::clamp(ceil_div(blocks, wanted), 1, most);
}

}  // namespace

std::string DenseGemmConfig::to_string() const {
  return fmt::format(
      "dense_gemm(rows={}, cluster={}, shares={}, tiles={}, warps={}, slots={}, x={} x {} chunks, "
      "shrinks of {} splits by {} warps)",
      8 * halves, cluster, num_shares, num_tiles, num_warps, num_slots, x_slots, x_chunks,
      shrink_splits, shrink_warps);
}

DenseGemmConfig select_dense_gemm(const DenseGemmProblem& problem) {
  DenseGemmConfig config = {.cluster = select_cluster(problem)};
  const int half_warps = max_dense_warps(/*halves=*/1);
  const int units = share_units(problem, config.cluster);
  config.halves = select_halves(problem.max_rows);
  config.num_shares =
      std::min(problem.layout.num_units, std::max(1, problem.num_sms / config.cluster));
  // Clusters of four do not fill every group of multiprocessors: one that has to wait for a place
  // doubles the time. As few as have no more units each.
  if (config.cluster == kMaxDenseCluster && (config.halves > 2 || problem.lora)) {
    config.num_shares = ceil_div(problem.layout.num_units, units);
  }
  config.num_tiles = std::max(1, ceil_div(problem.max_rows, 8 * config.halves));
  // Many rows and many rounds: the more units share the activations, the better.
  const bool half = config.halves <= 2 || (config.halves == 4 && units <= half_warps);
  config.num_warps =
      ceil_div(units, ceil_div(units, half ? half_warps : max_dense_warps(config.halves)));
  if (problem.lora && problem.max_rows <= kMaxInsideRows) {
    if (config.halves > 2) config.shared_s_bytes = shared_s_bytes(config.halves);
    config.shrink_splits = shrink_splits(problem.layout, problem.max_rows);
    // Half an SM is a matter of registers too.
    config.shrink_warps = std::min(problem.max_rows <= kVeryFewRows ? 2 : kMaxDenseShrinkWarps,
                                   max_inside_warps(half ? 1 : 8) - 1 - config.num_warps);
  }
  if (half && lay_out_rings(config, units, kHalfSharedBytes)) return config;
  MEDLEY_CHECK(lay_out_rings(config, units, kWholeSharedBytes), config.to_string());
  return config;
}

}  // namespace medley::cuda
