#pragma once

#include <string>

#include "base/error.h"
#include "spec/model_spec.h"
#include "weights/checkpoint.h"

namespace medley {

// What `medley adapters check` prints of an adapter that can be served: modules, ranks, size, hash,
// warnings; several lines. Else the error that loading it would give. `base` as read_peft_adapter.
Result<std::string> check_adapter(const std::string& folder, const ModelSpec& spec,
                                  const TensorMap* base = nullptr);

}  // namespace medley
