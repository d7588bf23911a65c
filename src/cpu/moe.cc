#include "cpu/activation.h"
#include "cpu/parallel.h"
#include "cpu/planned_ops.h"
#include "cpu/routing.h"
#include "cpu/simd.h"
#include "cpu/step.h"

namespace medley::cpu {
namespace {

struct ExpertGemm {
  const CpuRouting& routing;
  const PackedExperts& experts;
  LoraSite site;
  LoraRows rows;  // in routed order
};

// Base product, then LoRA, of all routed rows.
void run_experts(Context& context, const ExpertGemm& job) {
  const auto& segments = job.routing.segments;
  const int num_segments = static_cast<int>(segments.size());
  GemmProblem* problems = context.workspace.problems.reserve(num_segments);
  const int capacity = max_lora_tasks(job.routing.num_routed, num_segments);
  const std::span<LoraTask> tasks(context.workspace.tasks.reserve(capacity), capacity);
  int num_problems = 0;
  int num_tasks = 0;
  for (int i = 0; i < num_segments; ++i) {
    const RoutingSegment& segment = segments[i];
    if (i == 0 || segments[i - 1].expert != segment.expert) {
      problems[num_problems++] = {&job.experts.matrices[segment.expert], job.rows.x + segment.begin,
                                  job.rows.out + segment.begin};
    }
    problems[num_problems - 1].num_rows += segment.end - segment.begin;
    if (segment.slot == kNoAdapter) continue;
    add_lora_tasks(context.lora.find(segment.slot, job.site), segment.expert, segment.begin,
                   segment.end - segment.begin, tasks, num_tasks);
  }
  gemm({problems, static_cast<size_t>(num_problems)}, context.pool);
  apply_lora(context, tasks.first(num_tasks), job.rows);
}

// finish(routed row, expert) for every routed row.
template <class Finish>
void finish_routed(Context& context, const CpuRouting& routing, int64_t work_per_row,
                   const Finish& finish) {
  parallel_items(context.pool, routing.segments.size(), routing.num_routed * work_per_row,
                 [&](int64_t i) {
                   const RoutingSegment& segment = routing.segments[i];
                   for (int r = segment.begin; r < segment.end; ++r) finish(r, segment.expert);
                 });
}

const PackedExperts& packed_experts(const PackedWeight* weight, int num_experts, int64_t rows,
                                    int64_t cols) {
  const auto& experts = static_cast<const PackedExperts&>(*weight);
  MEDLEY_CHECK_EQ(static_cast<int>(experts.matrices.size()), num_experts);
  MEDLEY_CHECK_EQ(experts.matrices[0].rows, rows);
  MEDLEY_CHECK_EQ(experts.matrices[0].cols, cols);
  return experts;
}

class CpuMoeGateUp : public MoeGateUp {
 public:
  CpuMoeGateUp(Context& context, const MoeGateUpDesc& desc) : context_(context), desc_(desc) {}

  void run(const MoeGateUpArgs& args, const Step& step, Stream&) override {
    const auto& routing = static_cast<const CpuRouting&>(*args.routing);
    const int64_t inner = desc_.moe.intermediate_size;
    const PackedExperts& experts =
        packed_experts(args.weight, desc_.moe.num_experts, 2 * inner, desc_.hidden_size);
    Workspace& workspace = context_.workspace;
    const float* const* x = widen_rows(context_, args.x, step.num_rows(), desc_.hidden_size);
    const float** routed_x = workspace.routed_x.reserve(routing.num_routed);
    float** acc = workspace.out_rows.reserve(routing.num_routed);
    float* base = workspace.acc.reserve(int64_t{routing.num_routed} * 2 * inner);
    for (int r = 0; r < routing.num_routed; ++r) {
      routed_x[r] = x[routing.row_of_routed[r]];
      acc[r] = base + int64_t{r} * 2 * inner;
    }
    run_experts(context_, {routing,
                           experts,
                           desc_.lora,
                           {.x = routed_x,
                            .out = acc,
                            .in_size = desc_.hidden_size,
                            .out_size = 2 * inner,
                            .round_s = desc_.dtype == DType::kBF16}});
    finish_routed(context_, routing, 16 * inner, [&](int r, int expert) {
      if (const float* bias = experts.bias_of(expert)) {
        for (int64_t i = 0; i < 2 * inner; ++i) acc[r][i] += bias[i];
      }
      activate(desc_.moe.activation, acc[r], acc[r] + inner, inner, acc[r]);
      store_row(acc[r], args.out.data, desc_.dtype, r * inner, inner);
    });
  }

 private:
  Context& context_;
  MoeGateUpDesc desc_;
};

class CpuMoeDown : public MoeDown {
 public:
  CpuMoeDown(Context& context, const MoeDownDesc& desc) : context_(context), desc_(desc) {}

  void run(const MoeDownArgs& args, const Step&, Stream&) override {
    const auto& routing = static_cast<const CpuRouting&>(*args.routing);
    const int64_t inner = desc_.moe.intermediate_size;
    const int64_t hidden = desc_.hidden_size;
    const PackedExperts& experts =
        packed_experts(args.weight, desc_.moe.num_experts, hidden, inner);
    const float* const* x = widen_rows(context_, args.x, routing.num_routed, inner);
    float* const* acc = accumulator_rows(context_, args.out, routing.num_routed, hidden);
    run_experts(context_, {routing,
                           experts,
                           desc_.lora,
                           {.x = x,
                            .out = acc,
                            .in_size = inner,
                            .out_size = hidden,
                            .round_s = desc_.dtype == DType::kBF16}});
    if (experts.bias.empty() && desc_.dtype == DType::kF32) return;
    finish_routed(context_, routing, hidden, [&](int r, int expert) {
      if (const float* bias = experts.bias_of(expert)) {
        for (int64_t i = 0; i < hidden; ++i) acc[r][i] += bias[i];
      }
      if (desc_.dtype != DType::kF32) {
        store_row(acc[r], args.out.data, desc_.dtype, r * hidden, hidden);
      }
    });
  }

 private:
  Context& context_;
  MoeDownDesc desc_;
};

}  // namespace

Result<std::unique_ptr<MoeGateUp>> make_moe_gate_up(Context& context, const MoeGateUpDesc& desc) {
  MEDLEY_TRY(check_dtype(desc.dtype));
  reserve_rows(context, desc.hidden_size, int64_t{2} * desc.moe.intermediate_size);
  context.workspace.routed_x.reserve(context.max_rows());
  context.workspace.problems.reserve(context.max_rows());
  return std::unique_ptr<MoeGateUp>(std::make_unique<CpuMoeGateUp>(context, desc));
}

Result<std::unique_ptr<MoeDown>> make_moe_down(Context& context, const MoeDownDesc& desc) {
  MEDLEY_TRY(check_dtype(desc.dtype));
  reserve_rows(context, desc.moe.intermediate_size, desc.hidden_size);
  context.workspace.problems.reserve(context.max_rows());
  return std::unique_ptr<MoeDown>(std::make_unique<CpuMoeDown>(context, desc));
}

}  // namespace medley::cpu
