#include "cuda/expert_gemm.h"

#include <fmt/format.h>

#include <algorithm>

namespace medley::cuda {
namespace {

constexpr int kMaxSlots = 8;
constexpr int kMinSlots = 2;
constexpr int kSpreadSlots = 4;  // more take longer to be asked for than they save
constexpr int kWarpCounts[] = {16, 12, 8, 4};
constexpr int kMaxThreads = 512;
// Units whose stages are summed apart at a time, and the bytes of their sums.
constexpr int kMaxSpreadUnits = 24;
constexpr int64_t kSpreadBytes = 32768;

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
  for (const int warps : kWarpCounts) {
    int64_t spread_bytes = 0;
    if (problem.max_tile_rows <= kSpreadRows) {
      const int64_t unit_bytes =
          int64_t{sizeof(float)} * kSpreadSumFloats * problem.layout.num_stages;
      config.spread_units =
          static_cast<int>(std::clamp<int64_t>(kSpreadBytes / unit_bytes, 1, kMaxSpreadUnits));
      spread_bytes = config.spread_units * unit_bytes;
    }
    const int64_t ring_bytes =
        static_cast<int64_t>(problem.shared_limit) - config.x_bytes - spread_bytes;
    const int threads = 32 * (warps + (problem.lora ? kShrinkWarps : 0));
    if (threads > kMaxThreads) continue;
    const int64_t slots = ring_bytes / (static_cast<int64_t>(warps) * config.slot_bytes);
    if (slots < kMinSlots) continue;
    config.num_warps = warps;
    config.num_slots =
        static_cast<int>(std::min<int64_t>(slots, spread_bytes > 0 ? kSpreadSlots : kMaxSlots));
    config.shared_bytes =
        static_cast<size_t>(config.num_warps) * config.num_slots * config.slot_bytes +
        static_cast<size_t>(config.x_bytes + spread_bytes);
    return config;
  }
  return unsupported(fmt::format(
      "matrix product on CUDA: {} rows of {} columns leave no shared memory for weights ({} bytes)",
      kTileRows, problem.in_size, problem.shared_limit));
}

}  // namespace medley::cuda
