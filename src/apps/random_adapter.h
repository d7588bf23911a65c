#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace CLI {
class App;
}

namespace medley::apps {

struct RandomAdapterFlags {
  std::string path;
  std::string model;
  int rank = 32;
  uint64_t seed = 1;
};

void add_random_adapter_flags(CLI::App& app, RandomAdapterFlags& flags);

// Writes a random adapter of a model, of which only config.json is read, as a PEFT folder.
Result<void> random_adapter(const RandomAdapterFlags& flags);

}  // namespace medley::apps
