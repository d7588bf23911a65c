#pragma once

#include <memory>

#include "backend/backend.h"
#include "engine/executor.h"
#include "model/model.h"

namespace medley {

// The executor that runs `model`, made with `options`, on `backend`, which must outlive it.
Result<std::unique_ptr<Executor>> make_model_executor(Backend& backend,
                                                      std::unique_ptr<Model> model,
                                                      const ModelOptions& options);

}  // namespace medley
