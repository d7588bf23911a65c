#pragma once

#include <memory>

#include "backend/backend.h"
#include "engine/executor.h"
#include "model/model.h"

namespace medley {

struct ExecutorOptions {
  StepDesc step;
  int num_pages = 0;
  int page_size = 16;
};

// The executor that runs `model`, which was made for steps of this size, on `backend`, which must
// outlive it. Makes the KV cache, and records the graphs of decode steps where the backend has
// them: the LoRA table must be there by then.
Result<std::unique_ptr<Executor>> make_model_executor(Backend& backend,
                                                      std::unique_ptr<Model> model,
                                                      const ExecutorOptions& options);

}  // namespace medley
