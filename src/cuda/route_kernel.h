#pragma once

#include <string>

#include "cuda/add_norm_kernel.h"
#include "cuda/lora_entry.h"
#include "cuda/matrix_layout.h"

namespace medley::cuda {

// Few rows: at most this many (row, choice) pairs are grouped, by one block.
inline constexpr int kMaxRoutedPairs = 1024;
inline constexpr int kMaxRoutedExperts = 256;
inline constexpr int kMaxRoutedSlots = 4094;
inline constexpr int kMaxRouteThreads = 384;
// Blocks of 32 columns of a warp's router rows that are read before the kernel's wait.
inline constexpr int kEarlyRouterBlocks = 8;

enum class RouteWeights : uint8_t { kSoftmaxOfChosen, kSoftmaxOfAll };

struct RouteParams {
  AddNormParams norm;
  const uint8_t* router = nullptr;          // one kBF16 matrix of num_experts rows
  const float* router_bias = nullptr;       // (units, 16), or none
  const int32_t* adapter_of_row = nullptr;  // (rows) slot or -1
  RoutingView routing;                      // out
  MatrixLayout layout;
  int num_experts = 0;
  int experts_per_token = 0;
  RouteWeights weights = RouteWeights::kSoftmaxOfChosen;
  const LoraEntry* lora = nullptr;  // (slots) of the router; null: the step has no adapters
  // One row: its experts go to routing.row_experts as soon as they are known.
  bool publishes = false;
};

// A cluster of blocks per row shares the router's rows.
struct RouteConfig {
  int cluster = 0;
  int num_threads = 0;
  int num_splits = 0;  // of the hidden size, among warps
  size_t shared_bytes = 0;
  bool groups_apart = false;  // more than kMaxRoutedPairs pairs are group_many's (route_many.h)
  std::string to_string() const;
};

void launch_add_norm_route(RowDelta delta, const RouteConfig& config, const RouteParams& params,
                           int max_rows, cudaStream_t stream);

}  // namespace medley::cuda
