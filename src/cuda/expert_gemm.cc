#include "cuda/expert_gemm.h"

#include <fmt/format.h>

#include <algorithm>

namespace medley::cuda {
namespace {

constexpr int kMaxSlots = 8;
constexpr int kMinSlots = 2;
constexpr int kWarpCounts[] = {16, 12, 8, 4};
constexpr int kMaxThreads = 512;

constexpr int kMaxSpreadUnits = 32;
// Dynamic shared memory of a block of a step of one row without LoRA: one of each product fits on a
// multiprocessor, beside what they take besides, but not two of gate_up's.
constexpr size_t kGateUpBesideDown = size_t{120} * 1024;
constexpr size_t kDownBesideGateUp = size_t{91} * 1024;

bool has_few_units(const ExpertGemmProblem& problem) {
  if (problem.max_pairs > kSpreadPairs) return false;
  switch (problem.role) {
    case GemmRole::kGateUp:
      return problem.max_tile_rows == 1 && !problem.lora;
    case GemmRole::kGateUpRaw:
      return false;
    case GemmRole::kDown:
      return problem.max_tile_rows <= kSpreadRows;
  }
  return false;
}

// The most warps that still get two slots each beside `beside` bytes, then the most slots; false if
// there is no room.
bool fit_rings(const ExpertGemmProblem& problem, size_t beside, size_t limit, int max_slots,
               ExpertGemmConfig& config) {
  for (const int warps : kWarpCounts) {
    const int threads = 32 * (warps + (problem.lora ? kShrinkWarps : 0));
    const size_t slot_of_each = static_cast<size_t>(warps) * config.slot_bytes;
    if (threads > kMaxThreads || beside + kMinSlots * slot_of_each > limit) continue;
    config.num_warps = warps;
    config.num_slots =
        static_cast<int>(std::min<size_t>((limit - beside) / slot_of_each, max_slots));
    config.shared_bytes = beside + config.num_slots * slot_of_each;
    return true;
  }
  return false;
}

// Where need be, the units of a block in several turns.
bool spread_over_warps(const ExpertGemmProblem& problem, ExpertGemmConfig& config) {
  size_t limit = problem.shared_limit;
  size_t least = 0;
  if (problem.max_tile_rows == 1 && !problem.lora) {
    const bool down = problem.role == GemmRole::kDown;
    limit = std::min(limit, down ? kDownBesideGateUp : kGateUpBesideDown);
    if (!down) least = limit;
  }
  const int all_units = problem.max_pairs * problem.layout.num_units;
  const int units_of_block = (all_units + problem.num_blocks - 1) / problem.num_blocks;
  const auto num_stages = static_cast<size_t>(problem.layout.num_stages);
  for (int units = std::min(units_of_block, kMaxSpreadUnits); units > 0; units /= 2) {
    const size_t beside = config.x_bytes + units * num_stages * kSpreadSumFloats * sizeof(float);
    if (!fit_rings(problem, beside, limit, kFewRowsSlots, config)) continue;
    config.spread_units = units;
    config.shrink_ranges =
        std::clamp(problem.num_blocks / (problem.max_pairs * kShrinkShares), 1, kMaxShrinkRanges);
    config.shared_bytes = std::max(config.shared_bytes, least);
    return true;
  }
  return false;
}

}  // namespace

std::string ExpertGemmConfig::to_string() const {
  return fmt::format("expert_gemm(warps={}, slots={} x {} bytes, row_stride={}, shared={})",
                     num_warps, num_slots, slot_bytes, row_stride, shared_bytes);
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
  config.half_rows = std::min(problem.max_tile_rows, kTileRows / 2);
  config.x_bytes = 2 * config.half_rows * config.row_stride;
  config.max_pairs = problem.max_pairs;
  if (has_few_units(problem) && spread_over_warps(problem, config)) return config;
  const int max_slots = problem.max_tile_rows <= kSpreadRows ? kFewRowsSlots : kMaxSlots;
  if (fit_rings(problem, config.x_bytes, problem.shared_limit, max_slots, config)) return config;
  return unsupported(fmt::format(
      "matrix product on CUDA: {} rows of {} columns leave no shared memory for weights ({} bytes)",
      kTileRows, problem.in_size, problem.shared_limit));
}

}  // namespace medley::cuda
