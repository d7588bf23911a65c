#pragma once

#include "cuda/context.h"
#include "cuda/dense_gemm_kernel.h"
#include "cuda/packed_weights.h"

namespace medley::cuda {

// A product, with LoRA inside where the step has adapters; a step of many rows shrinks before it.
struct DenseJob {
  DenseRole role = DenseRole::kRows;
  DenseGemmParams params;
  int max_rows = 0;  // of a launch
  bool lora = false;
};

void run_dense(Context& context, DenseJob job, Stream& stream);

// The parameters that every role has; `rows` and `x` as in DenseGemmParams.
DenseGemmParams dense_params(const CudaMatrices& matrices, const MatrixLayout& layout,
                             const RoutingView& rows, const void* x, void* out);

// kUnsupported when the rows of x cannot be read in pieces of 16 bytes.
Result<void> check_dense(const char* op, int in_size);

}  // namespace medley::cuda
