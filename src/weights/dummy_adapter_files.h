#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "spec/model_spec.h"
#include "tensor/dtype.h"

namespace medley {

struct DummyAdapterFileDesc {
  int rank = 32;
  DType dtype = DType::kBF16;  // or kF32
  // Experts as PEFT's target_parameters writes them, one tensor for all, and not one by one. For
  // models whose gate and up are one parameter (GPT-OSS).
  bool fused_experts = false;
  uint64_t seed = 1;
};

// Writes a random adapter of q, k, v, o and all experts (or the dense MLP) as a PEFT folder, which
// is made where it is missing. kInvalidArgument, naming the file, when it can't be written.
// Formats: PEFT 0.18's adapter_config.json; safetensors as its README describes it.
Result<void> write_dummy_adapter(const ModelSpec& spec, const DummyAdapterFileDesc& desc,
                                 const std::string& folder);

// Rewrites only its adapter_config.json, with a revision that makes it another adapter of the same
// weights: what tells adapters apart is the hash of both files.
Result<void> write_dummy_adapter_config(const ModelSpec& spec, const DummyAdapterFileDesc& desc,
                                        const std::string& revision, const std::string& folder);

}  // namespace medley
