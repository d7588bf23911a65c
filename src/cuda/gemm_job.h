#pragma once

#include "cuda/context.h"
#include "cuda/expert_gemm.h"
#include "cuda/packed_weights.h"

namespace medley::cuda {

// A product, with LoRA inside where the step has adapters.
struct GemmJob {
  GemmRole role = GemmRole::kGateUp;
  ExpertGemmParams params;
  int max_pairs = 0;
  int max_tile_rows = kTileRows;
  bool lora = false;
  bool one_row = false;  // ExpertGemmProblem::one_row
};

// Returns whether it was expert_gemm_row.cu's form, which hands on and takes early.
bool run_gemm(Context& context, GemmJob job, Stream& stream);

ExpertGemmParams make_params(const CudaMatrices& matrices, const MatrixLayout& layout,
                             const RoutingView& routing, const ConstTensorView& x, void* out);

GateParams gate_params(const ActivationSpec& activation);

// kUnsupported when activations are of another type, or a matrix does not fit shared memory.
Result<void> check_type(const char* op, DType dtype);
Result<void> check_fits(const Context& context, const MatrixLayout& layout, int in_size);

}  // namespace medley::cuda
