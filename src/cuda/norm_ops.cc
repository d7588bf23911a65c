#include <fmt/format.h>

#include "cuda/add_norm.h"
#include "cuda/context.h"
#include "cuda/packed_weights.h"
#include "cuda/route.h"
#include "cuda/route_many.h"
#include "cuda/routing.h"
#include "cuda/step.h"

namespace medley::cuda {
namespace {

RowDelta row_delta(AddNormDesc::Delta delta) {
  switch (delta) {
    case AddNormDesc::Delta::kDense:
      return RowDelta::kDense;
    case AddNormDesc::Delta::kRouted:
      return RowDelta::kRouted;
    default:
      return RowDelta::kNone;
  }
}

AddNormParams make_params(const AddNormDesc& desc, const AddNormArgs& args, const CudaStep& step) {
  const auto& norm = static_cast<const CudaVector&>(*args.norm);
  MEDLEY_CHECK_EQ(norm.size, desc.hidden_size);
  AddNormParams params = {.num_rows = step.device().num_rows,
                          .residual = args.residual.as<__nv_bfloat16>(),
                          .delta = args.delta.as<__nv_bfloat16>(),
                          .weight = norm.values.as<float>(),
                          .out = args.out.as<__nv_bfloat16>(),
                          .hidden_size = desc.hidden_size,
                          .experts_per_token = desc.experts_per_token,
                          .eps = desc.eps};
  if (desc.delta == AddNormDesc::Delta::kRouted) {
    params.routing = static_cast<const CudaRouting&>(*args.routing).view();
  }
  return params;
}

class CudaAddNorm : public AddNorm {
 public:
  CudaAddNorm(const AddNormDesc& desc, const AddNormConfig& config)
      : desc_(desc), config_(config) {}
  void run(const AddNormArgs& args, const Step& step, Stream& stream) override {
    const auto& cuda_step = static_cast<const CudaStep&>(step);
    if (cuda_step.launch_rows() == 0) return;
    launch_add_norm(row_delta(desc_.delta), config_, make_params(desc_, args, cuda_step),
                    cuda_step.launch_rows(), cuda_stream(stream));
  }

 private:
  AddNormDesc desc_;
  AddNormConfig config_;
};

class CudaAddNormRoute : public AddNormRoute {
 public:
  CudaAddNormRoute(Context& context, const AddNormRouteDesc& desc)
      : context_(context), desc_(desc) {}
  void run(const AddNormRouteArgs& args, const Step& step, Stream& stream) override {
    const auto& cuda_step = static_cast<const CudaStep&>(step);
    const auto& router = static_cast<const CudaMatrices&>(*args.router);
    const MoeSpec& moe = desc_.moe;
    MEDLEY_CHECK_EQ(router.out_size, moe.num_experts);
    const auto& routing = static_cast<const CudaRouting&>(*args.routing);
    MEDLEY_CHECK_LE(step.num_rows() * moe.experts_per_token, routing.max_pairs());
    const bool of_all = moe.router == RouterKind::kSoftmaxThenTopK && !moe.normalize_topk;
    const int rows = std::max(1, cuda_step.launch_rows());
    routing.start(/*one_row=*/rows == 1);
    const RouteParams params = {
        .norm = make_params(desc_.add_norm, args.add_norm, cuda_step),
        .router = router.weights.as<uint8_t>(),
        .router_bias = router.bias.as<float>(),
        .adapter_of_row = cuda_step.device().adapter_of_row,
        .routing = routing.view(),
        .layout = router.layout,
        .num_experts = moe.num_experts,
        .experts_per_token = moe.experts_per_token,
        .weights = of_all ? RouteWeights::kSoftmaxOfAll : RouteWeights::kSoftmaxOfChosen,
        .lora = desc_.lora && cuda_step.has_lora() ? context_.lora.entries(*desc_.lora) : nullptr,
        .publishes = routing.publishes()};
    const RouteConfig config = select_route(desc_, rows).value();
    launch_add_norm_route(row_delta(desc_.add_norm.delta), config, params, rows,
                          cuda_stream(stream));
    if (!config.groups_apart) return;
    launch_group_many({.routing = params.routing,
                       .num_rows = cuda_step.device().num_rows,
                       .row_by_slot = cuda_step.device().rows.row_of_pair,
                       .adapter_of_row = params.adapter_of_row,
                       .keys = routing.keys(),
                       .num_experts = moe.num_experts,
                       .experts_per_token = moe.experts_per_token},
                      cuda_stream(stream));
  }

 private:
  Context& context_;
  AddNormRouteDesc desc_;
};

}  // namespace

Result<std::unique_ptr<AddNorm>> plan_add_norm(const AddNormDesc& desc) {
  MEDLEY_TRY_ASSIGN(const AddNormConfig config, select_add_norm(desc));
  return std::unique_ptr<AddNorm>(std::make_unique<CudaAddNorm>(desc, config));
}

Result<std::unique_ptr<AddNormRoute>> plan_add_norm_route(Context& context,
                                                          const AddNormRouteDesc& desc) {
  MEDLEY_TRY(select_route(desc, /*max_rows=*/1));
  if (desc.lora) {
    context.lora.announce(
        *desc.lora, {.in_size = desc.add_norm.hidden_size, .part_rows = {desc.moe.num_experts}});
  }
  return std::unique_ptr<AddNormRoute>(std::make_unique<CudaAddNormRoute>(context, desc));
}

}  // namespace medley::cuda
