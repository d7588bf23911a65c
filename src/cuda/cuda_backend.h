#pragma once

#include <memory>

#include "backend/backend.h"

namespace medley {

// kUnavailable where there is no device of compute capability 9.0, with what was found.
//
// Activations are bfloat16. Implemented: add_norm, add_norm_route, moe_gate_up, moe_down, linear
// and lm_head, with LoRA; qk_norm_rope_append, attention and sample; the rest of the interface
// answers kUnsupported.
Result<std::unique_ptr<Backend>> make_cuda_backend();

namespace cuda {
struct Context;
}
// What a CUDA backend's ops share, for ops that are planned beside the interface.
cuda::Context& cuda_context(Backend& backend);

}  // namespace medley
