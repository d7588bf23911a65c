#pragma once

#include "base/error.h"

namespace medley::cuda {

// kInternal with CUDA's text once the device has failed (check.h). Thread-safe.
Result<void> device_fault();

}  // namespace medley::cuda
