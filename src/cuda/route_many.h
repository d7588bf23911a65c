#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/routing_view.h"

namespace medley::cuda {

// Groups any number of (row, choice) pairs once each row's experts are chosen.
struct GroupParams {
  RoutingView routing;                      // expert_of_choice in, the rest but the weights out
  const int32_t* num_rows = nullptr;        // device
  const int32_t* row_by_slot = nullptr;     // (rows) sorted by adapter slot, base rows first
  const int32_t* adapter_of_row = nullptr;  // (rows) slot or -1
  uint32_t* keys = nullptr;                 // (pairs) memory for the kernel's own use
  int num_experts = 0;                      // up to kMaxRoutedExperts
  int experts_per_token = 0;
  int tile_rows = kTileRows;
};

// One cluster of blocks, whatever the number of pairs.
void launch_group_many(const GroupParams& params, cudaStream_t stream);

}  // namespace medley::cuda
