#include "cuda/context.h"

#include <algorithm>

namespace medley::cuda {

Result<void> Context::reserve_step(const StepDesc& desc) {
  step = {.max_rows = std::max(step.max_rows, desc.max_rows),
          .max_seqs = std::max(step.max_seqs, desc.max_seqs),
          .max_pages = std::max(step.max_pages, desc.max_pages)};
  for (const auto& planner : planners) MEDLEY_TRY(planner->reserve(step));
  return {};
}

}  // namespace medley::cuda
