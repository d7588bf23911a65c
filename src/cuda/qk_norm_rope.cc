#include <fmt/format.h>

#include "cuda/context.h"
#include "cuda/kv_cache.h"
#include "cuda/packed_weights.h"
#include "cuda/qk_norm_rope_kernel.h"

namespace medley::cuda {

namespace {

class CudaQkNormRope : public QkNormRopeAppend {
 public:
  CudaQkNormRope(const QkNormRopeAppendDesc& desc, std::shared_ptr<const DeviceRopeTable> table)
      : desc_(desc), table_(std::move(table)) {}

  void run(const QkNormRopeAppendArgs& args, const Step& generic, Stream& stream) override {
    const auto& step = static_cast<const CudaStep&>(generic);
    if (step.num_rows() == 0) return;
    const AttentionSpec& spec = desc_.attention;
    auto& kv = static_cast<CudaKvCache&>(*args.kv);
    MEDLEY_CHECK_EQ(kv.desc().num_kv_heads, spec.num_kv_heads);
    MEDLEY_CHECK_EQ(kv.desc().head_dim, spec.head_dim);
    const StepArrays& arrays = step.device();
    QkNormRopeParams params = {.num_rows = arrays.num_rows,
                               .positions = arrays.positions,
                               .seq_of_row = arrays.seq_of_row,
                               .page_indptr = arrays.page_indptr,
                               .page_ids = arrays.page_ids,
                               .qkv = args.qkv.as<__nv_bfloat16>(),
                               .keys = kv.keys(desc_.layer),
                               .values = kv.values(desc_.layer),
                               .max_position = desc_.max_position,
                               .num_heads = spec.num_heads,
                               .num_kv_heads = spec.num_kv_heads,
                               .head_dim = spec.head_dim,
                               .page_size = kv.desc().page_size,
                               .eps = desc_.norm_eps};
    if (spec.qk_norm) {
      params.q_norm = norm_weight(args.q_norm);
      params.k_norm = norm_weight(args.k_norm);
    }
    if (table_ != nullptr) {
      params.cos = table_->cos.as<float>();
      params.sin = table_->sin.as<float>();
      params.rotary_dim = desc_.rope.rotary_dim;
    }
    launch_qk_norm_rope(params, step.launch_rows(), cuda_stream(stream));
  }

 private:
  const float* norm_weight(const PackedWeight* weight) const {
    const auto& norm = static_cast<const CudaVector&>(*weight);
    MEDLEY_CHECK_EQ(norm.size, desc_.attention.head_dim);
    return norm.values.as<float>();
  }

  const QkNormRopeAppendDesc desc_;
  const std::shared_ptr<const DeviceRopeTable> table_;
};

}  // namespace

Result<std::unique_ptr<QkNormRopeAppend>> plan_qk_norm_rope(Context& context,
                                                            const QkNormRopeAppendDesc& desc) {
  const int head_dim = desc.attention.head_dim;
  if (desc.dtype != DType::kBF16) {
    return unsupported(
        fmt::format("qk_norm_rope_append on CUDA: activations are bfloat16, found {}",
                    medley::to_string(desc.dtype)));
  }
  if (head_dim < 4 || head_dim % 4 != 0 || head_dim > kMaxRopeHeadDim) {
    return unsupported(fmt::format(
        "qk_norm_rope_append on CUDA: head_dim must be a multiple of 4 up to {}, found {}",
        kMaxRopeHeadDim, head_dim));
  }
  const int rotary_dim = desc.rope.rotary_dim;
  if (desc.rope_enabled && (rotary_dim < 4 || rotary_dim % 4 != 0 || rotary_dim > head_dim)) {
    return unsupported(fmt::format(
        "qk_norm_rope_append on CUDA: rotary_dim must be a multiple of 4 up to {}, found {}",
        head_dim, rotary_dim));
  }
  std::shared_ptr<const DeviceRopeTable> table;
  if (desc.rope_enabled) {
    MEDLEY_TRY_ASSIGN(table, context.rope_tables.get(desc.rope, desc.max_position));
  }
  return std::unique_ptr<QkNormRopeAppend>(
      std::make_unique<CudaQkNormRope>(desc, std::move(table)));
}

}  // namespace medley::cuda
