#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/routing_view.h"

namespace medley::cuda {

enum class RowDelta : uint8_t { kNone, kDense, kRouted };

// residual += delta, rounded; out = rms_norm(residual) * weight. One row per block.
struct AddNormParams {
  const int32_t* num_rows = nullptr;     // device
  __nv_bfloat16* residual = nullptr;     // (rows, H)
  const __nv_bfloat16* delta = nullptr;  // (rows, H) or, routed, (pairs, H)
  RoutingView routing;                   // routed
  const float* weight = nullptr;         // (H)
  __nv_bfloat16* out = nullptr;          // (rows, H)
  int hidden_size = 0;
  int experts_per_token = 0;  // routed
  float eps = 0.0f;
};

// How a row is laid over a block.
struct AddNormConfig {
  int num_threads = 0;
  size_t shared_bytes = 0;
  std::string to_string() const;
};

void launch_add_norm(RowDelta delta, const AddNormConfig& config, const AddNormParams& params,
                     int max_rows, cudaStream_t stream);

}  // namespace medley::cuda
