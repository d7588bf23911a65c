#pragma once

#include <memory>
#include <string>

#include "adapter/store.h"
#include "backend/backend.h"
#include "base/error.h"
#include "engine/executor.h"
#include "weights/dummy_adapters.h"
#include "weights/dummy_weights.h"

namespace medley::bench {

struct DummyRunDesc {
  std::string config;  // path of a config.json
  StepDesc step;
  int num_pages = 0;
  int max_loras = 0;
  int adapter_rank = 0;
  size_t pool_bytes = 0;    // device memory for adapters
  size_t pinned_bytes = 0;  // host memory for packed ones that is made ready at once
};

// A model of random weights on the GPU in bfloat16, ready to run. Members are in the order in which
// they depend on each other.
struct DummyRun {
  std::unique_ptr<DummyWeights> weights;
  std::unique_ptr<DummyAdapters> random_adapters;
  std::unique_ptr<Backend> backend;
  // Paths are numbers, each of another random adapter.
  std::unique_ptr<AdapterStore> adapters;
  std::unique_ptr<Executor> executor;
};

Result<DummyRun> make_dummy_run(const DummyRunDesc& desc);

// Waits until an adapter is on the device; nothing else may run.
Result<AdapterPin> bring_to_device(const std::string& name, DummyRun& run);

}  // namespace medley::bench
