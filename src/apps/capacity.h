#pragma once

#include "apps/load_model.h"
#include "base/error.h"

namespace medley::apps {

struct CapacityFlags : ModelFlags {
  double device_memory_gib = 0;  // 0 = this machine's GPU
  int adapter_rank = 32;
};

void add_capacity_flags(CLI::App& app, CapacityFlags& flags);

// Prints what fits on a GPU: the weights, keys and values, adapters. Reads the model's config and
// the headers of its weights, where there are some; loads nothing.
Result<void> capacity(const CapacityFlags& flags);

}  // namespace medley::apps
