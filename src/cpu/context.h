#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "backend/step.h"
#include "base/thread_pool.h"
#include "cpu/gemm.h"
#include "cpu/lora.h"
#include "cpu/memory.h"
#include "spec/rope_table.h"
#include "tensor/tensor.h"

namespace medley::cpu {

// Memory that ops use inside run(). Ops run one after the other, so they all share it.
struct Workspace {
  Scratch<float> x;      // activations widened to float32
  Scratch<float> acc;    // outputs before they are rounded
  Scratch<float> inner;  // the dense MLP's intermediate
  Scratch<float> lora_s;
  Scratch<const float*> x_rows, routed_x, lora_x;
  Scratch<float*> out_rows, lora_out;
  Scratch<GemmProblem> problems;
  Scratch<LoraTask> tasks;
};

// What the ops of one backend share.
struct Context {
  explicit Context(int num_threads) : pool(num_threads) {}

  // Capacities known so far, in rows of a GEMM: of make_step, and of make_routing (rows * k).
  int max_rows() const { return std::max(step.max_rows, max_routed_rows); }

  ThreadPool pool;
  StepDesc step;
  int max_routed_rows = 0;
  Workspace workspace;
  LoraTable lora;
  std::vector<int32_t> sampled_ids;  // by sampler slot: the id sampled last
  RopeTables rope_tables;
};

// Rows [0, num_rows) of `view` (.., cols) as float32: pointers into it, or into workspace.x.
const float** widen_rows(Context& context, const ConstTensorView& view, int num_rows, int64_t cols);

// Where a GEMM may leave rows [0, num_rows) of `view` (.., cols) in float32: in the view itself
// where it is float32, else in workspace.acc. finish_rows() then adds `bias` (cols, or null) and
// rounds into the view.
float** accumulator_rows(Context& context, const TensorView& view, int num_rows, int64_t cols);
void finish_rows(Context& context, float* const* acc, const float* bias, const TensorView& view,
                 int num_rows, int64_t cols);

// Sizes the workspace for such calls with the largest step known so far.
void reserve_rows(Context& context, int64_t in_cols, int64_t out_cols);

}  // namespace medley::cpu
