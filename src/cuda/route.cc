#include "cuda/route.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/add_norm.h"

namespace medley::cuda {
namespace {

// Bytes of the grouping's shared arrays (route_group.cuh), which reuse the row's.
constexpr size_t kGroupBytes =
    sizeof(uint32_t) * (2 * kMaxRoutedPairs + kMaxRoutedExperts + 3 * kMaxRoutedPairs / 32);
constexpr size_t kSharedLimit = size_t{160} * 1024;

}  // namespace

std::string RouteConfig::to_string() const {
  return fmt::format("route(cluster={}, threads={}, splits={}, shared={}{})", cluster, num_threads,
                     num_splits, shared_bytes, groups_apart ? ", groups apart" : "");
}

Result<RouteConfig> select_route(const AddNormRouteDesc& desc, int max_rows) {
  MEDLEY_TRY_ASSIGN(const AddNormConfig row, select_add_norm(desc.add_norm));
  const MoeSpec& moe = desc.moe;
  if (moe.num_experts > kMaxRoutedExperts || moe.experts_per_token > kMaxRoutedExperts / 8) {
    return unsupported(fmt::format(
        "router on CUDA: up to {} experts and {} a token, found {} and {}", kMaxRoutedExperts,
        kMaxRoutedExperts / 8, moe.num_experts, moe.experts_per_token));
  }
  RouteConfig config;
  config.groups_apart = max_rows * moe.experts_per_token > kMaxRoutedPairs;
  config.cluster = max_rows <= 16 ? 8 : max_rows <= 32 ? 4 : 2;
  config.num_threads = std::min(row.num_threads, kMaxRouteThreads);
  const int octets = (moe.num_experts + 7) / 8;
  const int warps = config.cluster * config.num_threads / 32;
  const int blocks = (desc.add_norm.hidden_size + 31) / 32;
  config.num_splits = std::clamp(warps / octets, 1, blocks);
  const size_t padded_row = static_cast<size_t>(blocks) * 32 * sizeof(float);
  config.shared_bytes = std::max(
      kGroupBytes, 2 * padded_row + desc.add_norm.hidden_size * size_t{2} +
                       static_cast<size_t>(config.num_threads) * kEarlyRouterBlocks * 16 +
                       static_cast<size_t>(config.num_splits) * moe.num_experts * sizeof(float));
  if (config.shared_bytes > kSharedLimit) {
    return unsupported(fmt::format("router on CUDA: hidden size {} needs {} bytes of shared memory",
                                   desc.add_norm.hidden_size, config.shared_bytes));
  }
  return config;
}

}  // namespace medley::cuda
