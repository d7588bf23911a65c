#pragma once

#include <memory>

#include "adapter/store.h"
#include "engine/engine.h"
#include "engine/executor.h"

namespace medley {

// Starts the engine's thread. `adapters` (null: base model only) must outlive the engine and is
// used by its thread. kInvalidArgument, with both numbers, when the options ask for more than the
// executor was built for, when a step has fewer rows than sequences, or when the pages cannot hold
// one request of max_model_len.
Result<std::unique_ptr<Engine>> start_engine(const EngineOptions& options,
                                             std::unique_ptr<Executor> executor,
                                             AdapterStore* adapters, TokenEventSink sink);

}  // namespace medley
