#include "cuda/dense_job.h"

#include <fmt/format.h>

#include <vector>

#include "cuda/dense_gemm.h"
#include "cuda/lora_shrink.h"

namespace medley::cuda {

namespace {

constexpr size_t kPartialBytes =
    size_t{kMaxShrinkPartials} * kMaxShrinkUnits * kShrinkSumFloats * sizeof(float);
constexpr size_t kInsideBytes = size_t{2} * kMaxInsideRows * kShrinkStride * sizeof(uint16_t);
constexpr size_t kLineBytes = 128;  // a line for each counter: atomics on one slow the others
constexpr size_t kCounterBytes = 3 * kLineBytes;

DenseShrinkQueue dense_shrink_queue(Context& context) {
  DeviceBuffer& memory = context.dense_shrink;
  return {.state = memory.as<DenseShrinkState>(),
          .taken = memory.as<uint32_t>(kLineBytes),
          .left = memory.as<uint32_t>(2 * kLineBytes),
          .partial = memory.as<float>(kCounterBytes),
          .s = memory.as<__nv_bfloat16>(kCounterBytes + kPartialBytes),
          .delay_ns = context.delay_ns};
}

}  // namespace

Result<void> Context::make_dense_shrink() {
  if (dense_shrink.num_bytes() > 0) return {};
  MEDLEY_TRY_ASSIGN(dense_shrink,
                    DeviceBuffer::allocate(kCounterBytes + kPartialBytes + kInsideBytes));
  dense_shrink.fill(0xff);
  const std::vector<uint8_t> zeros(kCounterBytes);
  dense_shrink.copy_from_host(zeros.data(), zeros.size());
  return {};
}

void run_dense(Context& context, DenseJob job, Stream& stream) {
  if (job.max_rows == 0) return;
  DenseGemmParams& params = job.params;
  const DenseGemmConfig config = select_dense_gemm({.layout = params.layout,
                                                    .max_rows = job.max_rows,
                                                    .num_sms = context.num_sms,
                                                    .lora = job.lora && params.lora != nullptr});
  DenseLora lora = DenseLora::kNone;
  if (job.lora && params.lora != nullptr) {
    lora = config.shrink_splits > 0 ? DenseLora::kInside : DenseLora::kBefore;
    params.s_stride = kShrinkStride;
  }
  if (lora == DenseLora::kInside) {
    params.shrink = dense_shrink_queue(context);
  } else if (lora == DenseLora::kBefore) {
    params.s = run_lora_shrink(context,
                               {.rows = params.rows,
                                .lora = params.lora,
                                .x = params.x,
                                .in_size = params.in_size,
                                .max_pairs = job.max_rows},
                               stream);
  }
  switch (job.role) {
    case DenseRole::kRows:
      return launch_dense_gemm<DenseRole::kRows>(lora, config, params, cuda_stream(stream));
    case DenseRole::kLogits:
      return launch_dense_gemm<DenseRole::kLogits>(lora, config, params, cuda_stream(stream));
    case DenseRole::kGateUp:
      return launch_dense_gemm<DenseRole::kGateUp>(lora, config, params, cuda_stream(stream));
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
