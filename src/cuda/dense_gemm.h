#pragma once

#include "cuda/dense_gemm_kernel.h"

namespace medley::cuda {

struct DenseGemmProblem {
  MatrixLayout layout;
  int max_rows = 1;  // of a launch
  int num_sms = 0;
  bool lora = false;  // changes how the work is shared out, but no order of the weight's sums
};

// Pure host arithmetic, keyed by shape and padded batch alone. A block takes half an SM where few
// rows or few units allow, so that the kernels before and after have their blocks beside it and
// stream their weights while this one begins or ends.
DenseGemmConfig select_dense_gemm(const DenseGemmProblem& problem);

}  // namespace medley::cuda
