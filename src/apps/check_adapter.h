#pragma once

#include <string>

#include "base/error.h"

namespace medley::apps {

struct CheckAdapterFlags {
  std::string path;
  std::string model;
};

// Reads an adapter as a server would, and prints what it holds. The error says why it can't be
// served.
Result<void> check_adapter(const CheckAdapterFlags& flags);

}  // namespace medley::apps
