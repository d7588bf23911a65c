#include "cuda/dense_job.h"

#include <fmt/format.h>

#include "cuda/dense_gemm.h"
#include "cuda/lora_shrink.h"

namespace medley::cuda {

void run_dense(Context& context, DenseJob job, Stream& stream) {
  if (job.max_rows == 0) return;
  DenseGemmParams& params = job.params;
  job.lora &= params.lora != nullptr;
  if (job.lora) {
    params.s = run_lora_shrink(context,
                               {.rows = params.rows,
                                .lora = params.lora,
                                .x = params.x,
                                .in_size = params.in_size,
                                .max_pairs = job.max_rows},
                               stream);
    params.s_stride = kShrinkStride;
  }
  const DenseGemmConfig config = select_dense_gemm(
      {.layout = params.layout, .max_rows = job.max_rows, .num_sms = context.num_sms});
  switch (job.role) {
    case DenseRole::kRows:
      return launch_dense_gemm<DenseRole::kRows>(job.lora, config, params, cuda_stream(stream));
    case DenseRole::kLogits:
      return launch_dense_gemm<DenseRole::kLogits>(job.lora, config, params, cuda_stream(stream));
    case DenseRole::kGateUp:
      return launch_dense_gemm<DenseRole::kGateUp>(job.lora, config, params, cuda_stream(stream));
  }
}

DenseGemmParams dense_params(const CudaMatrices& matrices, const MatrixLayout& layout,
                             const RoutingView& rows, const void* x, void* out) {
  MEDLEY_CHECK_EQ(matrices.layout.matrix_bytes(), layout.matrix_bytes());
  MEDLEY_CHECK(matrices.layout.format == layout.format, "weights of another format");
  return {.weights = matrices.weights.as<uint8_t>(),
          .bias = matrices.bias.as<float>(),
          .layout = matrices.layout,
          .rows = rows,
          .x = static_cast<const __nv_bfloat16*>(x),
          .out = out,
          .in_size = static_cast<int>(matrices.in_size),
          .out_size = static_cast<int>(matrices.out_size)};
}

Result<void> check_dense(const char* op, int in_size) {
  if (in_size % 8 == 0) return {};
  return unsupported(
      fmt::format("{} on CUDA: input size must be a multiple of 8, found {}", op, in_size));
}

}  // namespace medley::cuda
