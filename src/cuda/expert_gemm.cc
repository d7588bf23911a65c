#include "cuda/expert_gemm.h"

#include <fmt/format.h>

#include <algorithm>

namespace medley::cuda {
namespace {

constexpr int kMaxSlots = 8;
constexpr int kMinSlots = 2;
constexpr int kWarpCounts[] = {16, 12, 8, 4};
// With LoRA, what a block of lora_shrink on the same SM needs.
constexpr int64_t kShrinkSharedBytes = 8192;

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
  config.slot_bytes = std::max(problem.layout.stage_bytes, problem.lora ? 2 * kRankBlockBytes : 0);
  config.slot_bytes = (config.slot_bytes + 15) / 16 * 16;
  config.equal_units = problem.max_tile_rows <= kTileRows / 2;
  const int64_t ring_bytes = static_cast<int64_t>(problem.shared_limit) -
                             static_cast<int64_t>(kTileRows) * config.row_stride -
                             (problem.lora ? kShrinkSharedBytes : 0);
  for (const int warps : kWarpCounts) {
    const int64_t slots = ring_bytes / (static_cast<int64_t>(warps) * config.slot_bytes);
    if (slots < kMinSlots) continue;
    config.tile_rows = kTileRows;
    config.num_warps = warps;
    config.num_slots = static_cast<int>(std::min<int64_t>(slots, kMaxSlots));
    config.shared_bytes =
        static_cast<size_t>(config.num_warps) * config.num_slots * config.slot_bytes +
        static_cast<size_t>(kTileRows) * config.row_stride;
    return config;
  }
  return unsupported(fmt::format(
      "matrix product on CUDA: {} rows of {} columns leave no shared memory for weights ({} bytes)",
      kTileRows, problem.in_size, problem.shared_limit));
}

}  // namespace medley::cuda
