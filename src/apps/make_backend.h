#pragma once

#include <memory>

#include "backend/backend.h"
#include "base/error.h"

namespace medley::apps {

struct BackendFlags {
  int num_threads = 0;  // CPU; 0 = all
};

// The backend for this machine. kUnsupported, naming what is missing, when there is none.
Result<std::unique_ptr<Backend>> make_backend(const BackendFlags& flags);

}  // namespace medley::apps
