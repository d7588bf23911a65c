#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"
#include "base/error.h"

namespace medley::apps {

struct BackendFlags {
  std::string device = "auto";  // a GPU where there is one that can be used; or "cuda", "cpu"
  int num_threads = 0;          // CPU; 0 = all
};

// The backend for this machine. kUnsupported or kUnavailable, naming what is missing, when the
// device asked for is not to be had.
Result<std::unique_ptr<Backend>> make_backend(const BackendFlags& flags);

}  // namespace medley::apps
