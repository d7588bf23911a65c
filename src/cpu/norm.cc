#include "cpu/norm.h"

#include <cmath>

#include "cpu/parallel.h"
#include "cpu/planned_ops.h"
#include "cpu/routing.h"
#include "cpu/simd.h"

namespace medley::cpu {
namespace {

// The residual row plus what the layer before left for it, rounded as the residual is stored.
void add_delta(const AddNormDesc& desc, const AddNormArgs& args, int64_t row, float* sum,
               float* tmp) {
  const int64_t n = desc.hidden_size;
  std::copy_n(load_row(args.residual.data, desc.dtype, row * n, n, tmp), n, sum);
  if (desc.delta == AddNormDesc::Delta::kNone) return;
  if (desc.delta == AddNormDesc::Delta::kDense) {
    const float* delta = load_row(args.delta.data, desc.dtype, row * n, n, tmp);
    for (int64_t i = 0; i < n; ++i) sum[i] += delta[i];
  } else {
    // The experts' outputs are summed on their own, in the order of the choices, then added.
    const auto& routing = static_cast<const CpuRouting&>(*args.routing);
    float* mixed = tmp + n;
    std::fill_n(mixed, n, 0.0f);
    for (int j = 0; j < desc.experts_per_token; ++j) {
      const int64_t pair = row * desc.experts_per_token + j;
      const int64_t routed = routing.routed_of_pair[pair];
      axpy(routing.weights[pair], load_row(args.delta.data, desc.dtype, routed * n, n, tmp), mixed,
           n);
    }
    for (int64_t i = 0; i < n; ++i) sum[i] += mixed[i];
  }
  store_row(sum, args.residual.data, desc.dtype, row * n, n);
  if (desc.dtype == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) sum[i] = round_to_bf16(sum[i]);
  }
}

class CpuAddNorm : public AddNorm {
 public:
  CpuAddNorm(Context& context, const AddNormDesc& desc) : context_(context), desc_(desc) {}
  void run(const AddNormArgs& args, const Step& step, Stream&) override {
    run_add_norm(context_, desc_, args, step.num_rows());
  }

 private:
  Context& context_;
  AddNormDesc desc_;
};

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y) {
  const float scale = 1.0f / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

void run_add_norm(Context& context, const AddNormDesc& desc, const AddNormArgs& args,
                  int num_rows) {
  const int64_t n = desc.hidden_size;
  const auto& norm = static_cast<const PackedVector&>(*args.norm).values;
  MEDLEY_CHECK_EQ(static_cast<int64_t>(norm.size()), n);
  float* scratch = context.workspace.acc.reserve(int64_t{num_rows} * 3 * n);
  parallel_rows(context.pool, num_rows, 4 * n, [&](int64_t row) {
    float* sum = scratch + row * 3 * n;
    add_delta(desc, args, row, sum, sum + n);
    rms_norm(sum, norm.data(), desc.eps, n, sum);
    store_row(sum, args.out.data, desc.dtype, row * n, n);
  });
}

Result<std::unique_ptr<AddNorm>> make_add_norm(Context& context, const AddNormDesc& desc) {
  MEDLEY_TRY(check_dtype(desc.dtype));
  context.workspace.acc.reserve(static_cast<int64_t>(context.step.max_rows) * 3 * desc.hidden_size);
  return std::unique_ptr<AddNorm>(std::make_unique<CpuAddNorm>(context, desc));
}

}  // namespace medley::cpu
