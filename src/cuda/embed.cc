#include <fmt/format.h>

#include "cuda/dense_job.h"
#include "cuda/embed_kernel.h"
#include "cuda/gemm_job.h"

namespace medley::cuda {
namespace {

constexpr LoraSite kSite = {.module = LoraModule::kEmbed, .layer = 0};

class CudaEmbed : public Embed {
 public:
  CudaEmbed(Context& context, const EmbedDesc& desc) : context_(context), desc_(desc) {}

  void run(const EmbedArgs& args, const Step& step, Stream& stream) override {
    const auto& cuda_step = static_cast<const CudaStep&>(step);
    if (cuda_step.launch_rows() == 0) return;
    const auto& table = static_cast<const CudaTable&>(*args.table);
    MEDLEY_CHECK_EQ(table.rows, desc_.vocab_size);
    MEDLEY_CHECK_EQ(table.cols, desc_.hidden_size);
    const StepArrays& arrays = cuda_step.device();
    const EmbedParams params = {
        .num_rows = arrays.num_rows,
        .token_ids = arrays.token_ids,
        .seq_of_row = arrays.seq_of_row,
        .sampler_slots = arrays.sampler_slots,
        .last_token_of_slot = context_.last_token_of_slot.as<int32_t>(),
        .adapter_of_row = arrays.adapter_of_row,
        .lora = desc_.lora && cuda_step.has_lora() ? context_.lora.entries(kSite) : nullptr,
        .table = table.values.as<__nv_bfloat16>(),
        .residual = args.residual.as<__nv_bfloat16>(),
        .vocab_size = static_cast<int>(desc_.vocab_size),
        .hidden_size = desc_.hidden_size};
    launch_embed(params, cuda_step.launch_rows(), cuda_stream(stream));
  }

 private:
  Context& context_;
  EmbedDesc desc_;
};

}  // namespace

Result<std::unique_ptr<Embed>> plan_embed(Context& context, const EmbedDesc& desc) {
  MEDLEY_TRY(check_type("embed", desc.dtype));
  MEDLEY_TRY(check_dense("embed", desc.hidden_size));
  if (desc.lora) {
    context.lora.announce(kSite, {.in_size = desc.vocab_size, .part_rows = {desc.hidden_size}});
  }
  return std::unique_ptr<Embed>(std::make_unique<CudaEmbed>(context, desc));
}

}  // namespace medley::cuda
