#include "cuda/split_ops.h"

#include <algorithm>
#include <utility>

#include "cuda/gemm_job.h"
#include "cuda/route_kernel.h"
#include "cuda/routing.h"
#include "cuda/step.h"

namespace medley::cuda {
namespace {

// The LoRA of one projection in one step: what its launches read and write.
struct LoraJob {
  SplitLoraProblem problem;
  RoutingView routing;
  const LoraEntry* lora = nullptr;
  const __nv_bfloat16* x = nullptr;
  bool x_by_row = false;
  __nv_bfloat16* out = nullptr;
  int out_stride = 0;
  int row_limit = 0;
  bool paired = false;
};

// A projection's two launches, or four where sums must be zeroed and a delta added.
class SplitLora {
 public:
  SplitLora(std::shared_ptr<SplitWorkspace> workspace, const SplitLoraOptions& options)
      : workspace_(std::move(workspace)), options_(options) {}

  bool wants(SplitPart part) const { return (options_.parts & part) != 0; }
  int rank_multiple() const { return options_.rank_multiple; }
  __nv_bfloat16* raw() const { return workspace_->raw.as<__nv_bfloat16>(); }

  void shrink(const LoraJob& job, cudaStream_t stream) const {
    if (!wants(kSplitShrink)) return;
    const SplitShrinkConfig config = shrink_config(job.problem);
    if (config.split_k == SplitK::kAtomic) {
      launch_split_zero(sums(), job.problem.max_pairs, stream);
    }
    launch_split_shrink(config,
                        {.routing = job.routing,
                         .lora = job.lora,
                         .x = job.x,
                         .x_by_row = job.x_by_row,
                         .in_size = job.problem.in_size,
                         .num_blocks = (job.problem.in_size + 31) / 32,
                         .sums = sums()},
                        job.problem.max_pairs, stream);
  }

  void expand(const LoraJob& job, cudaStream_t stream) const {
    if (!wants(kSplitExpand)) return;
    const SplitShrinkConfig shrunk = shrink_config(job.problem);
    const SplitExpandConfig config =
        options_.expand.value_or(select_split_expand(job.problem, options_.switches));
    __nv_bfloat16* delta = workspace_->delta.as<__nv_bfloat16>();
    launch_split_expand(
        config,
        {.routing = job.routing,
         .lora = job.lora,
         .sums = sums(),
         .num_partials = shrunk.split_k == SplitK::kFixedOrder ? shrunk.num_splits : 1,
         .out = config.fused_add ? job.out : delta,
         .out_stride = job.out_stride,
         .num_units = job.problem.num_units,
         .row_limit = job.row_limit,
         .paired = job.paired},
        job.problem.max_pairs, stream);
    if (config.fused_add) return;
    launch_split_add({.routing = job.routing,
                      .lora = job.lora,
                      .delta = delta,
                      .out = job.out,
                      .stride = job.out_stride},
                     job.problem.max_pairs, stream);
  }

 private:
  SplitShrinkConfig shrink_config(const SplitLoraProblem& problem) const {
    return options_.shrink.value_or(select_split_shrink(problem, options_.switches));
  }
  SplitSums sums() const {
    return {.values = workspace_->sums.as<float>(),
            .split_stride = int64_t{kMaxRoutedPairs} * kSplitStride};
  }

  std::shared_ptr<SplitWorkspace> workspace_;
  SplitLoraOptions options_;
};

int max_pairs_of(const CudaStep& step, const MoeSpec& moe) {
  const int max_pairs = step.launch_rows() * moe.experts_per_token;
  MEDLEY_CHECK_LE(max_pairs, kMaxRoutedPairs);
  return max_pairs;
}

class SplitGateUp : public MoeGateUp {
 public:
  SplitGateUp(Context& context, std::shared_ptr<SplitWorkspace> workspace,
              const MoeGateUpDesc& desc, const SplitLoraOptions& options)
      : context_(context),
        desc_(desc),
        layout_(gate_up_layout(stream_format(desc.moe.format), desc.moe.intermediate_size,
                               desc.hidden_size)),
        lora_(std::move(workspace), options) {}

  void run(const MoeGateUpArgs& args, const Step& step, Stream& stream) override {
    const auto& cuda_step = static_cast<const CudaStep&>(step);
    const int max_pairs = max_pairs_of(cuda_step, desc_.moe);
    if (max_pairs == 0) return;
    const int inner = desc_.moe.intermediate_size;
    ExpertGemmParams base =
        make_params(static_cast<const CudaMatrices&>(*args.weight), layout_,
                    static_cast<const CudaRouting&>(*args.routing).view(), args.x, lora_.raw());
    base.gate = gate_params(desc_.moe.activation);
    const LoraJob job = {.problem = {.in_size = desc_.hidden_size,
                                     .num_units = layout_.num_units,
                                     .max_pairs = max_pairs,
                                     .rank_multiple = lora_.rank_multiple()},
                         .routing = base.routing,
                         .lora = context_.lora.entries(desc_.lora),
                         .x = base.x,
                         .x_by_row = true,
                         .out = lora_.raw(),
                         .out_stride = 2 * inner,
                         .row_limit = inner,
                         .paired = true};
    const bool with_lora = cuda_step.has_lora() && job.lora != nullptr;
    if (with_lora) {
      lora_.shrink(job, cuda_stream(stream));
      // The shrink in between has waited for the router.
      base.routed_before_predecessor = lora_.wants(kSplitShrink);
    }
    if (lora_.wants(kSplitBase)) {
      run_gemm(context_,
               {.role = GemmRole::kGateUpRaw,
                .params = base,
                .max_pairs = max_pairs,
                .max_tile_rows = cuda_step.launch_rows()},
               stream);
    }
    if (with_lora) lora_.expand(job, cuda_stream(stream));
    if (lora_.wants(kSplitActivate)) {
      launch_split_activate(base, args.out.as<__nv_bfloat16>(), max_pairs, cuda_stream(stream));
    }
  }

 private:
  Context& context_;
  MoeGateUpDesc desc_;
  MatrixLayout layout_;
  SplitLora lora_;
};

class SplitDown : public MoeDown {
 public:
  SplitDown(Context& context, std::shared_ptr<SplitWorkspace> workspace, const MoeDownDesc& desc,
            const SplitLoraOptions& options)
      : context_(context),
        desc_(desc),
        layout_(make_matrix_layout(stream_format(desc.moe.format), desc.hidden_size,
                                   desc.moe.intermediate_size)),
        lora_(std::move(workspace), options) {}

  void run(const MoeDownArgs& args, const Step& step, Stream& stream) override {
    const auto& cuda_step = static_cast<const CudaStep&>(step);
    const int max_pairs = max_pairs_of(cuda_step, desc_.moe);
    if (max_pairs == 0) return;
    ExpertGemmParams base =
        make_params(static_cast<const CudaMatrices&>(*args.weight), layout_,
                    static_cast<const CudaRouting&>(*args.routing).view(), args.x, args.out.data);
    // The router ran before gate_up.
    base.routed_before_predecessor = true;
    const LoraJob job = {.problem = {.in_size = desc_.moe.intermediate_size,
                                     .num_units = layout_.num_units,
                                     .max_pairs = max_pairs,
                                     .rank_multiple = lora_.rank_multiple()},
                         .routing = base.routing,
                         .lora = context_.lora.entries(desc_.lora),
                         .x = base.x,
                         .x_by_row = false,
                         .out = args.out.as<__nv_bfloat16>(),
                         .out_stride = desc_.hidden_size,
                         .row_limit = desc_.hidden_size,
                         .paired = false};
    const bool with_lora = cuda_step.has_lora() && job.lora != nullptr;
    if (with_lora) lora_.shrink(job, cuda_stream(stream));
    if (lora_.wants(kSplitBase)) {
      run_gemm(context_,
               {.role = GemmRole::kDown,
                .params = base,
                .max_pairs = max_pairs,
                .max_tile_rows = cuda_step.launch_rows()},
               stream);
    }
    if (with_lora) lora_.expand(job, cuda_stream(stream));
  }

 private:
  Context& context_;
  MoeDownDesc desc_;
  MatrixLayout layout_;
  SplitLora lora_;
};

// Both ops announce what the other ops of their sites would, and fail where those would.
template <class Op>
Result<void> check_like(const Result<std::unique_ptr<Op>>& other) {
  if (!other.ok()) return other.error();
  return {};
}

}  // namespace

Result<std::shared_ptr<SplitWorkspace>> SplitWorkspace::make(int max_columns) {
  auto workspace = std::make_shared<SplitWorkspace>();
  const size_t pairs = kMaxRoutedPairs;
  const size_t column_bytes = pairs * max_columns * sizeof(__nv_bfloat16);
  MEDLEY_TRY_ASSIGN(workspace->sums, DeviceBuffer::allocate(size_t{kMaxSplits} * pairs *
                                                            kSplitStride * sizeof(float)));
  MEDLEY_TRY_ASSIGN(workspace->raw, DeviceBuffer::allocate(column_bytes));
  MEDLEY_TRY_ASSIGN(workspace->delta, DeviceBuffer::allocate(column_bytes));
  workspace->sums.fill_zero();
  return workspace;
}

Result<std::unique_ptr<MoeGateUp>> plan_split_gate_up(Context& context,
                                                      std::shared_ptr<SplitWorkspace> workspace,
                                                      const MoeGateUpDesc& desc,
                                                      const SplitLoraOptions& options) {
  MEDLEY_TRY(check_like(plan_moe_gate_up(context, desc)));
  return std::unique_ptr<MoeGateUp>(
      std::make_unique<SplitGateUp>(context, std::move(workspace), desc, options));
}

Result<std::unique_ptr<MoeDown>> plan_split_down(Context& context,
                                                 std::shared_ptr<SplitWorkspace> workspace,
                                                 const MoeDownDesc& desc,
                                                 const SplitLoraOptions& options) {
  MEDLEY_TRY(check_like(plan_moe_down(context, desc)));
  return std::unique_ptr<MoeDown>(
      std::make_unique<SplitDown>(context, std::move(workspace), desc, options));
}

}  // namespace medley::cuda
