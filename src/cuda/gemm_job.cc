#include "cuda/gemm_job.h"

#include <fmt/format.h>

#include <algorithm>

namespace medley::cuda {

Result<void> check_type(const char* op, DType dtype) {
  if (dtype == DType::kBF16) return {};
  return unsupported(
      fmt::format("{} on CUDA: activations are bfloat16, found {}", op, to_string(dtype)));
}

Result<void> check_fits(const Context& context, const MatrixLayout& layout, int in_size) {
  const Result<ExpertGemmConfig> config = select_expert_gemm(
      {.layout = layout, .in_size = in_size, .lora = true, .shared_limit = context.shared_limit});
  if (!config.ok()) return config.error();
  return {};
}

// What a product of one row leaves in shrink_out: float, for each range.
constexpr size_t kRowShrinkBytes =
    size_t{kMaxRowPairs} * kMaxShrinkRanges * kShrinkStride * sizeof(float);

Result<void> Context::reserve_pairs(int max_pairs) {
  const size_t num_bytes = std::max(
      static_cast<size_t>(max_pairs) * kShrinkStride * sizeof(uint16_t), 2 * kRowShrinkBytes);
  if (num_bytes <= shrink_out.num_bytes()) return {};
  MEDLEY_TRY_ASSIGN(shrink_out, DeviceBuffer::allocate(num_bytes));
  shrink_out.fill_zero();
  return {};
}

bool run_gemm(Context& context, GemmJob job, Stream& stream) {
  if (job.max_pairs == 0) return false;
  ExpertGemmParams& params = job.params;
  job.lora &= params.lora != nullptr;
  const ExpertGemmConfig config = select_expert_gemm({.role = job.role,
                                                      .layout = params.layout,
                                                      .in_size = params.in_size,
                                                      .num_blocks = context.num_sms,
                                                      .max_pairs = job.max_pairs,
                                                      .max_tile_rows = job.max_tile_rows,
                                                      .lora = job.lora,
                                                      .one_row = job.one_row,
                                                      .shared_limit = context.shared_limit})
                                      .value();
  const bool one_row = config.turn_units > 0;
  if (job.lora) {
    MEDLEY_CHECK_LE(job.max_pairs * size_t{kShrinkStride} * 2, context.shrink_out.num_bytes());
    params.s = context.shrink_out.as<__nv_bfloat16>();
    // The two products of one row run side by side.
    if (one_row && job.role == GemmRole::kDown) params.s += kRowShrinkBytes / sizeof(*params.s);
    params.s_stride = kShrinkStride;
    params.shrink_ranges = config.shrink_ranges;
  }
  params.delay_ns = context.delay_ns;
  // gate_up of one row lets this kernel start before the router has ended.
  if (job.one_row && !one_row) params.routed_before_predecessor = false;
  const auto launch = one_row ? launch_expert_gemm_row : launch_expert_gemm;
  launch(job.role, job.lora, config, params, context.num_sms, cuda_stream(stream));
  return one_row;
}

GateParams gate_params(const ActivationSpec& activation) {
  return {.activation = activation.kind == Activation::kSwiGlu ? GateActivation::kSwiGlu
                                                               : GateActivation::kClampedSwiGlu,
          .limit = activation.limit,
          .alpha = activation.alpha};
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

}  // namespace medley::cuda
