#include <fmt/format.h>

#include <numeric>

#include "cuda/dense_job.h"
#include "cuda/gemm_job.h"
#include "cuda/step.h"

namespace medley::cuda {
namespace {

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
    DenseGemmParams params = dense_params(static_cast<const CudaMatrices&>(*args.weight), layout_,
                                          cuda_step.device().rows, args.x.data, args.out.data);
    if (desc_.lora) params.lora = context_.lora.entries(*desc_.lora);
    int end = 0;
    for (size_t part = 0; part + 1 < desc_.out_sizes.size(); ++part) {
      end += desc_.out_sizes[part] / kUnitRows;
      params.part_end[part] = end;
    }
    run_dense(context_,
              {.role = DenseRole::kRows,
               .params = params,
               .max_rows = cuda_step.launch_rows(),
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
    DenseGemmParams params =
        dense_params(static_cast<const CudaMatrices&>(*args.weight), layout_,
                     cuda_step.device().selected, args.x.data, args.logits.data);
    params.lora =
        desc_.lora ? context_.lora.entries({.module = LoraModule::kLmHead, .layer = 0}) : nullptr;
    run_dense(context_,
              {.role = DenseRole::kLogits,
               .params = params,
               .max_rows = cuda_step.launch_logit_rows(),
               .lora = cuda_step.has_lora()},
              stream);
  }

 private:
  Context& context_;
  LmHeadDesc desc_;
  MatrixLayout layout_;
};

}  // namespace

Result<std::unique_ptr<Linear>> plan_linear(Context& context, const LinearDesc& desc) {
  MEDLEY_TRY(check_type("linear", desc.dtype));
  for (size_t part = 0; part < desc.out_sizes.size(); ++part) {
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
  MEDLEY_TRY(check_dense("linear", desc.in_size));
  if (desc.lora) {
    context.lora.announce(
        *desc.lora,
        {.in_size = desc.in_size, .part_rows = {desc.out_sizes.begin(), desc.out_sizes.end()}});
  }
  return std::unique_ptr<Linear>(std::make_unique<CudaLinear>(context, desc));
}

Result<std::unique_ptr<LmHead>> plan_lm_head(Context& context, const LmHeadDesc& desc) {
  MEDLEY_TRY(check_type("lm_head", desc.dtype));
  MEDLEY_TRY(check_dense("lm_head", desc.hidden_size));
  if (desc.lora) {
    context.lora.announce({.module = LoraModule::kLmHead, .layer = 0},
                          {.in_size = desc.hidden_size, .part_rows = {desc.vocab_size}});
  }
  return std::unique_ptr<LmHead>(std::make_unique<CudaLmHead>(context, desc));
}

}  // namespace medley::cuda
