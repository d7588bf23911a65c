#pragma once

#include "base/error.h"
#include "cuda/expert_gemm_kernel.h"

namespace medley::cuda {

struct ExpertGemmProblem {
  GemmRole role = GemmRole::kGateUp;
  MatrixLayout layout;
  int in_size = 0;
  int num_blocks = 1;
  int max_pairs = 0;              // of the step
  int max_tile_rows = kTileRows;  // rows of one expert, at most: those of the step
  bool lora = false;
  bool one_row = false;     // of a step, whose router publishes RoutingView::row_experts
  size_t shared_limit = 0;  // bytes of dynamic shared memory that a block may have
};

// Pure host arithmetic: the most warps (16 at most, those that shrink among them) that still get
// two slots each, then the most slots. kUnsupported where a tile's activations leave no room for
// that.
Result<ExpertGemmConfig> select_expert_gemm(const ExpertGemmProblem& problem);

}  // namespace medley::cuda
