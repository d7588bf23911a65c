#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend/weights.h"
#include "base/error.h"
#include "spec/model_spec.h"
#include "weights/checkpoint.h"

namespace medley {

// A checked adapter, ready for Backend::pack_adapter. Movable only.
struct AdapterWeights {
  std::vector<LoraModuleWeights> modules;  // by layer, then module; views into what follows
  std::unique_ptr<Checkpoint> checkpoint;
  std::vector<HostTensor> copies;  // where the file's order can't be expressed as a view

  int max_rank = 0;
  size_t num_bytes = 0;  // of the file's tensors
  std::string hash;      // BLAKE3 of config and weights, hex
  std::vector<std::string> warnings;
};

// Reads a PEFT adapter folder (adapter_config.json, adapter_model.safetensors) against a model. The
// layout is found from names and shapes. Every tensor is accounted for, and every module that the
// config targets is there; else an error names the tensor or config field, what was expected and
// what was found. `base` (may be null) holds the model's own tensors: PEFT may store copies of the
// embeddings in an adapter, which are harmless when they are equal. Thread-safe.
Result<AdapterWeights> read_peft_adapter(const std::string& folder, const ModelSpec& spec,
                                         const TensorMap* base = nullptr);

}  // namespace medley
