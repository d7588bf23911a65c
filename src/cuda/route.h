#pragma once

#include "backend/ops.h"
#include "cuda/route_kernel.h"

namespace medley::cuda {

// Pure host arithmetic; `max_rows` is the padded batch, which with the shape alone decides how sums
// are split. kUnsupported for what the kernel cannot do.
Result<RouteConfig> select_route(const AddNormRouteDesc& desc, int max_rows);

}  // namespace medley::cuda
