#pragma once

#include "backend/sampler.h"
#include "base/error.h"
#include "cuda/context.h"

namespace medley::cuda {

// Leaves sampled ids in context.last_token_of_slot. All memory is taken here: per slot 4 bytes a
// token of the vocabulary and 24 KiB of edits. kUnsupported above kMaxSamplerSlots slots or
// kMaxSampledVocab tokens.
Result<std::unique_ptr<Sampler>> plan_sampler(Context& context, const SamplerDesc& desc);

}  // namespace medley::cuda
