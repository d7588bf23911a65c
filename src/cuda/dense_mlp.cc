#include "cuda/dense_job.h"
#include "cuda/gemm_job.h"

namespace medley::cuda {
namespace {

// gate and up with the activation in one product, down in the next. The intermediate is rounded to
// bfloat16, as it is what the down projection reads; all layers share its memory.
class CudaDenseMlp : public DenseMlp {
 public:
  CudaDenseMlp(Context& context, const DenseMlpDesc& desc)
      : context_(context),
        desc_(desc),
        gate_up_layout_(
            gate_up_layout(StreamFormat::kBF16, desc.mlp.intermediate_size, desc.hidden_size)),
        down_layout_(make_matrix_layout(StreamFormat::kBF16, desc.hidden_size,
                                        desc.mlp.intermediate_size)) {}

  void run(const DenseMlpArgs& args, const Step& step, Stream& stream) override {
    const auto& cuda_step = static_cast<const CudaStep&>(step);
    const RoutingView& rows = cuda_step.device().rows;
    void* inner = context_.mlp_inner.data();
    MEDLEY_CHECK_LE(static_cast<size_t>(step.num_rows()) * desc_.mlp.intermediate_size * 2,
                    context_.mlp_inner.num_bytes());

    DenseGemmParams gate_up = dense_params(static_cast<const CudaMatrices&>(*args.gate_up),
                                           gate_up_layout_, rows, args.x.data, inner);
    MEDLEY_CHECK_EQ(gate_up.out_size, desc_.mlp.intermediate_size);
    gate_up.gate = gate_params(desc_.mlp.activation);
    gate_up.lora = context_.lora.entries(desc_.gate_up_lora);
    const auto run = [&](DenseRole role, const DenseGemmParams& params) {
      run_dense(context_,
                {.role = role,
                 .params = params,
                 .max_rows = cuda_step.launch_rows(),
                 .lora = cuda_step.has_lora()},
                stream);
    };
    run(DenseRole::kGateUp, gate_up);

    DenseGemmParams down = dense_params(static_cast<const CudaMatrices&>(*args.down), down_layout_,
                                        rows, inner, args.out.data);
    down.lora = context_.lora.entries(desc_.down_lora);
    run(DenseRole::kRows, down);
  }

 private:
  Context& context_;
  DenseMlpDesc desc_;
  MatrixLayout gate_up_layout_;
  MatrixLayout down_layout_;
};

}  // namespace

Result<std::unique_ptr<DenseMlp>> plan_dense_mlp(Context& context, const DenseMlpDesc& desc) {
  const int inner = desc.mlp.intermediate_size;
  MEDLEY_TRY(check_type("dense_mlp", desc.dtype));
  MEDLEY_TRY(check_dense("dense_mlp", desc.hidden_size));
  MEDLEY_TRY(check_dense("dense_mlp, down", inner));
  const size_t num_bytes = static_cast<size_t>(desc.max_rows) * inner * sizeof(uint16_t);
  if (num_bytes > context.mlp_inner.num_bytes()) {
    MEDLEY_TRY_ASSIGN(context.mlp_inner, DeviceBuffer::allocate(num_bytes));
  }
  context.lora.announce(
      desc.gate_up_lora,
      {.in_size = desc.hidden_size, .part_rows = {inner, inner}, .parts_share_units = true});
  context.lora.announce(desc.down_lora, {.in_size = inner, .part_rows = {desc.hidden_size}});
  return std::unique_ptr<DenseMlp>(std::make_unique<CudaDenseMlp>(context, desc));
}

}  // namespace medley::cuda
