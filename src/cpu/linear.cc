#include <numeric>

#include "cpu/activation.h"
#include "cpu/parallel.h"
#include "cpu/planned_ops.h"
#include "cpu/simd.h"
#include "cpu/step.h"

namespace medley::cpu {
namespace {

const PackedLinear& packed_linear(const PackedWeight* weight, int64_t rows, int64_t cols) {
  const auto& linear = static_cast<const PackedLinear&>(*weight);
  MEDLEY_CHECK_EQ(linear.matrix.rows, rows);
  MEDLEY_CHECK_EQ(linear.matrix.cols, cols);
  return linear;
}

class CpuLinear : public Linear {
 public:
  CpuLinear(Context& context, const LinearDesc& desc)
      : context_(context),
        desc_(desc),
        out_size_(std::accumulate(desc.out_sizes.begin(), desc.out_sizes.end(), int64_t{0})) {}

  void run(const LinearArgs& args, const Step& generic, Stream&) override {
    const CpuStep& step = cpu_step(generic);
    const PackedLinear& weight = packed_linear(args.weight, out_size_, desc_.in_size);
    MEDLEY_CHECK_EQ(weight.bias.empty(), !desc_.bias);
    const int rows = step.num_rows();
    const float* const* x = widen_rows(context_, args.x, rows, desc_.in_size);
    float* const* acc = accumulator_rows(context_, args.out, rows, out_size_);
    const GemmProblem problem{&weight.matrix, x, acc, rows};
    gemm({&problem, 1}, context_.pool);
    if (desc_.lora) {
      apply_dense_lora(context_, *desc_.lora, step.row_groups,
                       {.x = x,
                        .out = acc,
                        .in_size = desc_.in_size,
                        .out_size = out_size_,
                        .round_s = desc_.dtype == DType::kBF16});
    }
    finish_rows(context_, acc, weight.bias_or_null(), args.out, rows, out_size_);
  }

 private:
  Context& context_;
  LinearDesc desc_;
  int64_t out_size_;
};

class CpuLmHead : public LmHead {
 public:
  CpuLmHead(Context& context, const LmHeadDesc& desc) : context_(context), desc_(desc) {}

  void run(const LmHeadArgs& args, const Step& generic, Stream&) override {
    const CpuStep& step = cpu_step(generic);
    const PackedLinear& weight = packed_linear(args.weight, desc_.vocab_size, desc_.hidden_size);
    const int rows = step.num_logit_rows();
    const int64_t n = desc_.hidden_size;
    const float** x = context_.workspace.x_rows.reserve(rows);
    float* wide = context_.workspace.x.reserve(rows * n);
    for (int i = 0; i < rows; ++i) {
      x[i] = load_row(args.x.data, desc_.dtype, step.logit_rows[i] * n, n, wide + i * n);
    }
    float* const* logits = accumulator_rows(context_, args.logits, rows, desc_.vocab_size);
    const GemmProblem problem{&weight.matrix, x, logits, rows};
    gemm({&problem, 1}, context_.pool);
    if (desc_.lora) {
      apply_dense_lora(context_, {LoraModule::kLmHead, 0}, step.logit_groups,
                       {.x = x,
                        .out = logits,
                        .in_size = n,
                        .out_size = desc_.vocab_size,
                        .round_s = desc_.dtype == DType::kBF16});
    }
    finish_rows(context_, logits, weight.bias_or_null(), args.logits, rows, desc_.vocab_size);
  }

 private:
  Context& context_;
  LmHeadDesc desc_;
};

// The intermediate is rounded to the activation type, since it is what the down projection reads.
class CpuDenseMlp : public DenseMlp {
 public:
  CpuDenseMlp(Context& context, const DenseMlpDesc& desc) : context_(context), desc_(desc) {}

  void run(const DenseMlpArgs& args, const Step& generic, Stream&) override {
    const CpuStep& step = cpu_step(generic);
    const int64_t hidden = desc_.hidden_size;
    const int64_t inner = desc_.mlp.intermediate_size;
    const bool round = desc_.dtype == DType::kBF16;
    const PackedLinear& gate_up = packed_linear(args.gate_up, 2 * inner, hidden);
    const PackedLinear& down = packed_linear(args.down, hidden, inner);
    const int rows = step.num_rows();

    const float** x = widen_rows(context_, args.x, rows, hidden);
    float** acc = context_.workspace.out_rows.reserve(rows);
    float* wide = context_.workspace.inner.reserve(int64_t{rows} * 2 * inner);
    for (int row = 0; row < rows; ++row) acc[row] = wide + int64_t{row} * 2 * inner;
    const GemmProblem up_problem{&gate_up.matrix, x, acc, rows};
    gemm({&up_problem, 1}, context_.pool);
    apply_dense_lora(
        context_, desc_.gate_up_lora, step.row_groups,
        {.x = x, .out = acc, .in_size = hidden, .out_size = 2 * inner, .round_s = round});
    parallel_rows(context_.pool, rows, 16 * inner, [&](int64_t row) {
      for (size_t i = 0; i < gate_up.bias.size(); ++i) acc[row][i] += gate_up.bias[i];
      activate(desc_.mlp.activation, acc[row], acc[row] + inner, inner, acc[row]);
      for (int64_t i = 0; round && i < inner; ++i) acc[row][i] = round_to_bf16(acc[row][i]);
      x[row] = acc[row];
    });

    float* const* out = accumulator_rows(context_, args.out, rows, hidden);
    const GemmProblem down_problem{&down.matrix, x, out, rows};
    gemm({&down_problem, 1}, context_.pool);
    apply_dense_lora(context_, desc_.down_lora, step.row_groups,
                     {.x = x, .out = out, .in_size = inner, .out_size = hidden, .round_s = round});
    finish_rows(context_, out, down.bias_or_null(), args.out, rows, hidden);
  }

 private:
  Context& context_;
  DenseMlpDesc desc_;
};

}  // namespace

Result<std::unique_ptr<Linear>> make_linear(Context& context, const LinearDesc& desc) {
  MEDLEY_TRY(check_dtype(desc.dtype));
  reserve_rows(context, desc.in_size,
               std::accumulate(desc.out_sizes.begin(), desc.out_sizes.end(), int64_t{0}));
  return std::unique_ptr<Linear>(std::make_unique<CpuLinear>(context, desc));
}

Result<std::unique_ptr<LmHead>> make_lm_head(Context& context, const LmHeadDesc& desc) {
  MEDLEY_TRY(check_dtype(desc.dtype));
  reserve_rows(context, desc.hidden_size, /*out_cols=*/0);
  return std::unique_ptr<LmHead>(std::make_unique<CpuLmHead>(context, desc));
}

Result<std::unique_ptr<DenseMlp>> make_dense_mlp(Context& context, const DenseMlpDesc& desc) {
  MEDLEY_TRY(check_dtype(desc.dtype));
  const int64_t inner = desc.mlp.intermediate_size;
  reserve_rows(context, desc.hidden_size, desc.hidden_size);
  context.workspace.inner.reserve(int64_t{std::max(context.max_rows(), desc.max_rows)} * 2 * inner);
  return std::unique_ptr<DenseMlp>(std::make_unique<CpuDenseMlp>(context, desc));
}

}  // namespace medley::cpu
