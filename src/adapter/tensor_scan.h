#pragma once

#include "tensor/tensor.h"

namespace medley {

struct TensorScan {
  bool finite = true;    // no NaN, no infinity
  bool all_zero = true;  // +0 or -0
};

// One pass over a contiguous float32, bfloat16 or float16 tensor.
TensorScan scan_tensor(const ConstTensorView& tensor);

}  // namespace medley
