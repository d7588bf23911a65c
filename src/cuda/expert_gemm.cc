#include "cuda/expert_gemm.h"

#include <fmt/format.h>

#include <algorithm>

namespace medley::cuda {
namespace {

constexpr int kWarpCounts[] = {16, 12, 8, 4};
constexpr int kMaxThreads = 512;

// Dynamic shared memory of a block of a step of one row: one of each product fits on a
// multiprocessor, beside what they take besides, but not two of gate_up's.
constexpr size_t kGateUpBesideDown = size_t{132} * 1024;
constexpr size_t kDownBesideGateUp = size_t{78} * 1024;
constexpr int kMaxLoraDownWarps = 8;  // beside those that shrink, as registers allow

// The most warps whose rings, which `others` of them lack, fit beside `beside` bytes; false if
// there is no room.
bool fit_rings(const ExpertGemmProblem& problem, int max_warps, int others, size_t beside,
               size_t limit, ExpertGemmConfig& config) {
  for (const int warps : kWarpCounts) {
    const int threads = 32 * (warps + (problem.lora ? kShrinkWarps : 0));
    const size_t bytes =
        beside + static_cast<size_t>(warps - others) * kRingSlots * config.slot_bytes;
    if (warps > max_warps || threads > kMaxThreads || bytes > limit) continue;
    config.num_warps = warps - others;
    config.shared_bytes = bytes;
    return true;
  }
  return false;
}

bool fit_one_row(const ExpertGemmProblem& problem, ExpertGemmConfig& config) {
  const bool down = problem.role == GemmRole::kDown;
  if (!problem.one_row || problem.role == GemmRole::kGateUpRaw ||
      problem.max_pairs > kMaxRowPairs) {
    return false;
  }
  const int max_warps = down && problem.lora ? kMaxLoraDownWarps : kWarpCounts[0];
  // One watches for activations, one finishes units.
  const int others = (down ? 1 : 0) + (problem.lora ? 0 : 1);
  const size_t budget = down ? kDownBesideGateUp : kGateUpBesideDown;
  const size_t limit = std::min(problem.shared_limit, budget);
  const size_t x_bytes = down ? 0 : (problem.in_size * size_t{2} + 127) / 128 * 128;
  const int all_units = problem.max_pairs * problem.layout.num_units;
  const int units_of_block = (all_units + problem.num_blocks - 1) / problem.num_blocks;
  const auto num_stages = static_cast<size_t>(problem.layout.num_stages);
  for (int units = std::min(units_of_block, kMaxTurnUnits); units > 0; units /= 2) {
    const size_t beside = x_bytes + units * num_stages * kStageSums * 2 * sizeof(float);
    if (!fit_rings(problem, max_warps, others, beside, limit, config)) continue;
    config.turn_units = units;
    config.x_bytes = static_cast<int>(x_bytes);
    config.shrink_ranges =
        std::clamp(problem.num_blocks / (problem.max_pairs * kShrinkShares), 1, kMaxShrinkRanges);
    if (!down) config.shared_bytes = limit;
    return true;
  }
  return false;
}

}  // namespace

std::string ExpertGemmConfig::to_string() const {
  return fmt::format("expert_gemm(warps={}, slots={} x {} bytes, row_stride={}, shared={})",
                     num_warps, kRingSlots, slot_bytes, row_stride, shared_bytes);
}

Result<ExpertGemmConfig> select_expert_gemm(const ExpertGemmProblem& problem) {
  if (problem.in_size % 8 != 0) {
    return unsupported(fmt::format(
        "matrix product on CUDA: input size must be a multiple of 8, found {}", problem.in_size));
  }
  ExpertGemmConfig config;
  // A stride of 64 modulo 128 bytes keeps the 16-byte loads of 8 rows free of bank conflicts.
  const int row_bytes = problem.layout.padded_cols * 2;
  config.row_stride = (row_bytes + 127) / 128 * 128 + (row_bytes % 128 == 64 ? -64 : 64);
  config.slot_bytes = (problem.layout.stage_bytes + 15) / 16 * 16;
  config.row_pieces = (problem.in_size * 2 + kRowPieceBytes - 1) / kRowPieceBytes;
  config.half_rows = std::min(problem.max_tile_rows, kTileRows / 2);
  config.x_bytes = 2 * config.half_rows * config.row_stride;
  config.max_pairs = problem.max_pairs;
  if (fit_one_row(problem, config)) return config;
  if (fit_rings(problem, kWarpCounts[0], /*others=*/0, config.x_bytes, problem.shared_limit,
                config)) {
    return config;
  }
  return unsupported(fmt::format(
      "matrix product on CUDA: {} rows of {} columns leave no shared memory for weights ({} bytes)",
      kTileRows, problem.in_size, problem.shared_limit));
}

}  // namespace medley::cuda
