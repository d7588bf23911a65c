#pragma once

#include "backend/ops.h"
#include "cuda/add_norm_kernel.h"

namespace medley::cuda {

// Pure host arithmetic. kUnsupported for a hidden size that is no multiple of 8 or a type other
// than bfloat16.
Result<AddNormConfig> select_add_norm(const AddNormDesc& desc);

}  // namespace medley::cuda
