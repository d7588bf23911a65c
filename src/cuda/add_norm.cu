#include "cuda/add_norm.cuh"
#include "cuda/launch.h"

namespace medley::cuda {

template <RowDelta kDelta>
__global__ void add_norm_kernel(const AddNormParams p) {
  extern __shared__ float row_values[];
  // At once: whatever follows reads only weights and step inputs before its own wait.
  launch_dependents();
  const int row = blockIdx.x;
  if (row >= *p.num_rows) {
    wait_for_predecessor();
    return;
  }
  const RowAhead<kDelta> ahead(p, row);
  float first[8];
  wait_for_predecessor();
  const float inverse_rms = add_row<kDelta>(p, row, ahead, first, row_values);
  const auto all = [](int) { return true; };
  auto* sum = reinterpret_cast<uint4*>(row_values + p.hidden_size);
  normalise_row(p, p.weight, row, inverse_rms, first, row_values, sum, all);
  store_sum<kDelta>(p, row, sum, all, /*first_thread=*/0);
}

void launch_add_norm(RowDelta delta, const AddNormConfig& config, const AddNormParams& params,
                     int max_rows, cudaStream_t stream) {
  const LaunchShape shape = {.grid = dim3(max_rows),
                             .block = dim3(config.num_threads),
                             .shared_bytes = config.shared_bytes};
  [[maybe_unused]] static const bool allowed =
      allow_all_shared_memory(add_norm_kernel<RowDelta::kNone>, add_norm_kernel<RowDelta::kDense>,
                              add_norm_kernel<RowDelta::kRouted>);
  switch (delta) {
    case RowDelta::kNone:
      return launch(add_norm_kernel<RowDelta::kNone>, shape, stream, params);
    case RowDelta::kDense:
      return launch(add_norm_kernel<RowDelta::kDense>, shape, stream, params);
    case RowDelta::kRouted:
      return launch(add_norm_kernel<RowDelta::kRouted>, shape, stream, params);
  }
}

}  // namespace medley::cuda
