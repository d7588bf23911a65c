#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cuda/context.h"
#include "cuda/expert_gemm.h"
#include "cuda/lora_shrink.h"
#include "cuda/packed_weights.h"
#include "cuda/route_kernel.h"
#include "cuda/routing.h"
#include "cuda/step.h"

namespace medley::cuda {
namespace {

Result<void> check_type(const char* op, DType dtype) {
  if (dtype == DType::kBF16) return {};
  return unsupported(
      fmt::format("{} on CUDA: activations are bfloat16, found {}", op, to_string(dtype)));
}

// Shrinks where the step has adapters, then the product with LoRA inside.
struct GemmJob {
  GemmRole role = GemmRole::kDense;
  ExpertGemmParams params;
  bool x_by_row = true;
  int max_pairs = 0;
  int max_tile_rows = kTileRows;
  bool lora = false;
};

void run_gemm(Context& context, GemmJob job, Stream& stream) {
  if (job.max_pairs == 0) return;
  ExpertGemmParams& params = job.params;
  job.lora &= params.lora != nullptr;
  if (job.lora) {
    MEDLEY_CHECK_LE(job.max_pairs, kMaxRoutedPairs);
    params.s = context.shrink_out.as<__nv_bfloat16>();
    params.s_stride = kShrinkStride;
    params.routed_before_predecessor = true;
    const LoraShrinkParams shrink = {.routing = params.routing,
                                     .lora = params.lora,
                                     .x = params.x,
                                     .x_by_row = job.x_by_row,
                                     .in_size = params.in_size,
                                     .layout = lora_a_layout(params.in_size),
                                     .s = context.shrink_out.as<__nv_bfloat16>(),
                                     .s_stride = kShrinkStride};
    launch_lora_shrink(select_lora_shrink(shrink.layout, job.max_pairs), shrink, job.max_pairs,
                       cuda_stream(stream));
  }
  const ExpertGemmConfig config = select_expert_gemm({.layout = params.layout,
                                                      .in_size = params.in_size,
                                                      .max_tile_rows = job.max_tile_rows,
                                                      .single_tile = job.role == GemmRole::kDense ||
                                                                     job.role == GemmRole::kLogits,
                                                      .lora = job.lora,
                                                      .shared_limit = context.shared_limit})
                                      .value();
  launch_expert_gemm(job.role, job.lora, config, params, context.num_sms, cuda_stream(stream));
}

ExpertGemmParams make_params(const CudaMatrices& matrices, const MatrixLayout& layout,
                             const RoutingView& routing, const ConstTensorView& x, void* out) {
  MEDLEY_CHECK_EQ(matrices.layout.matrix_bytes(), layout.matrix_bytes());
  MEDLEY_CHECK(matrices.layout.format == layout.format, "weights of another format");
  return {.weights = matrices.weights.as<uint8_t>(),
          .bias = matrices.bias.as<float>(),
          .layout = matrices.layout,
          .routing = routing,
          .x = x.as<__nv_bfloat16>(),
          .out = out,
          .in_size = static_cast<int>(matrices.in_size),
          .out_size = static_cast<int>(matrices.out_size)};
}

class CudaMoeGateUp : public MoeGateUp {
 public:
  CudaMoeGateUp(Context& context, const MoeGateUpDesc& desc)
      : context_(context),
        desc_(desc),
        layout_(gate_up_layout(stream_format(desc.moe.format), desc.moe.intermediate_size,
                               desc.hidden_size)) {}

  void run(const MoeGateUpArgs& args, const Step& step, Stream& stream) override {
    const auto& cuda_step = static_cast<const CudaStep&>(step);
    ExpertGemmParams params =
        make_params(static_cast<const CudaMatrices&>(*args.weight), layout_,
                    static_cast<const CudaRouting&>(*args.routing).view(), args.x, args.out.data);
    const ActivationSpec& activation = desc_.moe.activation;
    params.activation = activation.kind == Activation::kSwiGlu ? GateActivation::kSwiGlu
                                                               : GateActivation::kClampedSwiGlu;
    params.activation_limit = activation.limit;
    params.activation_alpha = activation.alpha;
    params.lora = context_.lora.entries(desc_.lora);
    run_gemm(context_,
             {.role = GemmRole::kGateUp,
              .params = params,
              .x_by_row = true,
              .max_pairs = step.num_rows() * desc_.moe.experts_per_token,
              .max_tile_rows = step.num_rows(),
              .lora = cuda_step.has_lora()},
             stream);
  }

 private:
  Context& context_;
  MoeGateUpDesc desc_;
  MatrixLayout layout_;
};

class CudaMoeDown : public MoeDown {
 public:
  CudaMoeDown(Context& context, const MoeDownDesc& desc)
      : context_(context),
        desc_(desc),
        layout_(make_matrix_layout(stream_format(desc.moe.format), desc.hidden_size,
                                   desc.moe.intermediate_size)) {}

  void run(const MoeDownArgs& args, const Step& step, Stream& stream) override {
    const auto& cuda_step = static_cast<const CudaStep&>(step);
    ExpertGemmParams params =
        make_params(static_cast<const CudaMatrices&>(*args.weight), layout_,
                    static_cast<const CudaRouting&>(*args.routing).view(), args.x, args.out.data);
    params.lora = context_.lora.entries(desc_.lora);
    // The router ran before gate_up, this kernel's predecessor.
    params.routed_before_predecessor = true;
    run_gemm(context_,
             {.role = GemmRole::kDown,
              .params = params,
              .x_by_row = false,
              .max_pairs = step.num_rows() * desc_.moe.experts_per_token,
              .max_tile_rows = step.num_rows(),
              .lora = cuda_step.has_lora()},
             stream);
  }

 private:
  Context& context_;
  MoeDownDesc desc_;
  MatrixLayout layout_;
};

class CudaLinear : public Linear {
 public:
  CudaLinear(Context& context, const LinearDesc& desc)
      : context_(context),
        desc_(desc),
        layout_(make_matrix_layout(StreamFormat::kBF16,
                                   std::accumulate(desc.out_sizes.begin(), desc.out_sizes.end(), 0),
                                   desc.in_size)) {}

  void run(const LinearArgs& args, const Step& step, Stream& stream) override {
    const auto& cuda_step = static_cast<const CudaStep&>(step);
    ExpertGemmParams params = make_params(static_cast<const CudaMatrices&>(*args.weight), layout_,
                                          cuda_step.rows(), args.x, args.out.data);
    if (desc_.lora) params.lora = context_.lora.entries(*desc_.lora);
    int end = 0;
    for (size_t part = 0; part + 1 < desc_.out_sizes.size(); ++part) {
      end += desc_.out_sizes[part] / kUnitRows;
      params.part_end[part] = end;
    }
    // Rows are grouped on the host, before any kernel of the step.
    params.routed_before_predecessor = true;
    run_gemm(context_,
             {.role = GemmRole::kDense,
              .params = params,
              .x_by_row = true,
              .max_pairs = step.num_rows(),
              .max_tile_rows = step.num_rows(),
              .lora = cuda_step.has_lora()},
             stream);
  }

 private:
  Context& context_;
  LinearDesc desc_;
  MatrixLayout layout_;
};

class CudaLmHead : public LmHead {
 public:
  CudaLmHead(Context& context, const LmHeadDesc& desc)
      : context_(context),
        desc_(desc),
        layout_(make_matrix_layout(StreamFormat::kBF16, desc.vocab_size, desc.hidden_size)) {}

  void run(const LmHeadArgs& args, const Step& step, Stream& stream) override {
    const auto& cuda_step = static_cast<const CudaStep&>(step);
    ExpertGemmParams params = make_params(static_cast<const CudaMatrices&>(*args.weight), layout_,
                                          cuda_step.logit_rows(), args.x, args.logits.data);
    params.lora =
        desc_.lora ? context_.lora.entries({.module = LoraModule::kLmHead, .layer = 0}) : nullptr;
    params.routed_before_predecessor = true;
    run_gemm(context_,
             {.role = GemmRole::kLogits,
              .params = params,
              .x_by_row = true,
              .max_pairs = step.num_logit_rows(),
              .max_tile_rows = step.num_logit_rows(),
              .lora = cuda_step.has_lora()},
             stream);
  }

 private:
  Context& context_;
  LmHeadDesc desc_;
  MatrixLayout layout_;
};

Result<void> check_fits(const Context& context, const MatrixLayout& layout, int in_size) {
  const Result<ExpertGemmConfig> config = select_expert_gemm(
      {.layout = layout, .in_size = in_size, .lora = true, .shared_limit = context.shared_limit});
  if (!config.ok()) return config.error();
  return {};
}

}  // namespace

Result<std::unique_ptr<MoeGateUp>> plan_moe_gate_up(Context& context, const MoeGateUpDesc& desc) {
  MEDLEY_TRY(check_type("moe_gate_up", desc.dtype));
  const int inner = desc.moe.intermediate_size;
  MEDLEY_TRY(check_fits(context,
                        gate_up_layout(stream_format(desc.moe.format), inner, desc.hidden_size),
                        desc.hidden_size));
  context.lora.announce(desc.lora, {.in_size = desc.hidden_size,
                                    .part_rows = {inner, inner},
                                    .parts_share_units = true,
                                    .num_experts = desc.moe.num_experts});
  return std::unique_ptr<MoeGateUp>(std::make_unique<CudaMoeGateUp>(context, desc));
}

Result<std::unique_ptr<MoeDown>> plan_moe_down(Context& context, const MoeDownDesc& desc) {
  MEDLEY_TRY(check_type("moe_down", desc.dtype));
  const int inner = desc.moe.intermediate_size;
  MEDLEY_TRY(check_fits(
      context, make_matrix_layout(stream_format(desc.moe.format), desc.hidden_size, inner), inner));
  context.lora.announce(
      desc.lora,
      {.in_size = inner, .part_rows = {desc.hidden_size}, .num_experts = desc.moe.num_experts});
  return std::unique_ptr<MoeDown>(std::make_unique<CudaMoeDown>(context, desc));
}

Result<std::unique_ptr<Linear>> plan_linear(Context& context, const LinearDesc& desc) {
  MEDLEY_TRY(check_type("linear", desc.dtype));
  int64_t rows = 0;
  for (size_t part = 0; part < desc.out_sizes.size(); ++part) {
    rows += desc.out_sizes[part];
    if (desc.lora && part + 1 < desc.out_sizes.size() && desc.out_sizes[part] % kUnitRows != 0) {
      return unsupported(
          fmt::format("linear with LoRA on CUDA: parts of a multiple of {} rows, "
                      "found {}",
                      kUnitRows, desc.out_sizes[part]));
    }
  }
  if (desc.out_sizes.empty() || desc.out_sizes.size() > 3) {
    return unsupported(
        fmt::format("linear on CUDA: one to three parts, found {}", desc.out_sizes.size()));
  }
  MEDLEY_TRY(check_fits(context, make_matrix_layout(StreamFormat::kBF16, rows, desc.in_size),
                        desc.in_size));
  if (desc.lora) {
    context.lora.announce(
        *desc.lora,
        {.in_size = desc.in_size, .part_rows = {desc.out_sizes.begin(), desc.out_sizes.end()}});
  }
  return std::unique_ptr<Linear>(std::make_unique<CudaLinear>(context, desc));
}

Result<std::unique_ptr<LmHead>> plan_lm_head(Context& context, const LmHeadDesc& desc) {
  MEDLEY_TRY(check_type("lm_head", desc.dtype));
  MEDLEY_TRY(check_fits(context,
                        make_matrix_layout(StreamFormat::kBF16, desc.vocab_size, desc.hidden_size),
                        desc.hidden_size));
  if (desc.lora) {
    context.lora.announce({.module = LoraModule::kLmHead, .layer = 0},
                          {.in_size = desc.hidden_size, .part_rows = {desc.vocab_size}});
  }
  return std::unique_ptr<LmHead>(std::make_unique<CudaLmHead>(context, desc));
}

}  // namespace medley::cuda
