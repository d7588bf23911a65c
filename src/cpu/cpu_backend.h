#pragma once

#include <memory>

#include "backend/backend.h"

namespace medley {

struct CpuBackendOptions {
  int num_threads = 0;  // 0 = one per hardware thread
  // Rounds LoRA matrices to bfloat16 when they are packed, as a GPU stores them. Otherwise they
  // keep the precision of their file.
  bool lora_bf16 = false;
};

// kUnsupported, naming what is missing, on a processor without AVX2, FMA and BMI2 (x86-64-v3).
Result<void> cpu_backend_supported();

// The reference for every other backend and the embedded default. Streams run inline. Activations
// and the KV cache are float32 or bfloat16. A row's results do not depend, to the bit, on the other
// rows of its step, nor on the number of threads.
//
// make_step() and make_routing() before plan() let the workspaces be sized at start-up; an op that
// meets a larger step than announced grows them once.
//
// A bug (CHECK) where cpu_backend_supported() fails.
std::unique_ptr<Backend> make_cpu_backend(const CpuBackendOptions& options);

}  // namespace medley
