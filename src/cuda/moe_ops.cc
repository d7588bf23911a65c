#include "cuda/gemm_job.h"
#include "cuda/routing.h"
#include "cuda/step.h"

namespace medley::cuda {
namespace {

GemmJob make_job(GemmRole role, const ExpertGemmParams& params, const MoeSpec& moe,
                 const CudaStep& step, const CudaRouting& routing) {
  return {.role = role,
          .params = params,
          .max_pairs = step.launch_rows() * moe.experts_per_token,
          .max_tile_rows = step.launch_rows(),
          .lora = step.has_lora(),
          .one_row = routing.publishes()};
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
    const auto& routing = static_cast<const CudaRouting&>(*args.routing);
    ExpertGemmParams params = make_params(static_cast<const CudaMatrices&>(*args.weight), layout_,
                                          routing.view(), args.x, args.out.data);
    params.gate = gate_params(desc_.moe.activation);
    params.lora = context_.lora.entries(desc_.lora);
    params.next_lora =
        context_.lora.entries({.module = LoraModule::kExpertDown, .layer = desc_.lora.layer});
    const bool counts = run_gemm(
        context_, make_job(GemmRole::kGateUp, params, desc_.moe, cuda_step, routing), stream);
    routing.set_units_of_pair(counts ? params.layout.num_units : 0, args.out.data);
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
    const auto& routing = static_cast<const CudaRouting&>(*args.routing);
    ExpertGemmParams params = make_params(static_cast<const CudaMatrices&>(*args.weight), layout_,
                                          routing.view(), args.x, args.out.data);
    params.lora = context_.lora.entries(desc_.lora);
    // The router ran before gate_up, this kernel's predecessor.
    params.routed_before_predecessor = true;
    // Not all units: the last ones are on their way by then.
    params.units_of_pair = (routing.take_units_of_pair(args.x.data) * 3 + 3) / 4;
    run_gemm(context_, make_job(GemmRole::kDown, params, desc_.moe, cuda_step, routing), stream);
  }

 private:
  Context& context_;
  MoeDownDesc desc_;
  MatrixLayout layout_;
};

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

}  // namespace medley::cuda
