#include <fmt/format.h>

#include "cuda/attention_planner.h"
#include "cuda/context.h"
#include "cuda/kv_cache.h"
#include "cuda/packed_weights.h"

namespace medley::cuda {
namespace {

class AttentionOp : public Attention {
 public:
  explicit AttentionOp(const AttentionDesc& desc) : desc_(desc) {}

 protected:
  AttentionInputs make_inputs(const AttentionArgs& args, const CudaStep& step) const {
    const AttentionSpec& spec = desc_.attention;
    const auto& kv = static_cast<const CudaKvCache&>(*args.kv);
    MEDLEY_CHECK_EQ(kv.desc().num_kv_heads, spec.num_kv_heads);
    MEDLEY_CHECK_EQ(kv.desc().head_dim, spec.head_dim);
    const StepArrays& arrays = step.device();
    AttentionInputs inputs = {.q = args.qkv.as<__nv_bfloat16>(),
                              .q_stride = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim,
                              .keys = kv.keys(desc_.layer),
                              .values = kv.values(desc_.layer),
                              .num_seqs = arrays.num_seqs,
                              .q_indptr = arrays.q_indptr,
                              .kv_lens = arrays.kv_lens,
                              .page_indptr = arrays.page_indptr,
                              .page_ids = arrays.page_ids,
                              .page_size = kv.desc().page_size,
                              .num_heads = spec.num_heads,
                              .num_kv_heads = spec.num_kv_heads,
                              .window = desc_.window,
                              .scale = spec.scale};
    if (spec.sinks) {
      const auto& sinks = static_cast<const CudaVector&>(*args.sinks);
      MEDLEY_CHECK_EQ(sinks.size, spec.num_heads);
      inputs.sinks = sinks.values.as<float>();
    }
    return inputs;
  }

  const AttentionDesc desc_;
};

// Sequences with one row in chunks of keys that are joined afterwards, unless the window fits one
// chunk; the others in tiles of rows.
class TiledAttention : public AttentionOp {
 public:
  TiledAttention(const AttentionDesc& desc, AttentionPlanner& planner)
      : AttentionOp(desc), planner_(planner) {}

  void run(const AttentionArgs& args, const Step& generic, Stream& stream) override {
    const auto& step = static_cast<const CudaStep&>(generic);
    if (step.num_rows() == 0) return;
    const int head_dim = desc_.attention.head_dim;
    const cudaStream_t on = cuda_stream(stream);
    auto* out = args.out.as<__nv_bfloat16>();
    AttentionInputs inputs = make_inputs(args, step);
    inputs.page_indptr = planner_.page_indptr();
    inputs.max_seqs = planner_.max_seqs();
    if (planner_.num_prefill_items() > 0) {
      launch_prefill_attention(head_dim, inputs, planner_.prefill_items(), out,
                               planner_.num_prefill_items(), on);
    }
    if (!planner_.has_decode()) return;
    const AttentionItems items = planner_.decode_items();
    const int max_items = planner_.max_decode_items(step);
    if (planner_.is_whole()) {
      return launch_decode_attention(head_dim, inputs, items, out, max_items, on);
    }
    launch_chunked_attention(head_dim, inputs, items, planner_.chunks(), max_items, on);
    launch_merge_chunks({.num_seqs = inputs.num_seqs,
                         .q_indptr = inputs.q_indptr,
                         .chunks = planner_.chunks(),
                         .out = out,
                         .num_heads = inputs.num_heads,
                         .head_dim = head_dim},
                        step.is_decode() ? step.launch_rows() : step.num_seqs(), on);
  }

 private:
  AttentionPlanner& planner_;
};

class PlainAttention : public AttentionOp {
 public:
  using AttentionOp::AttentionOp;

  void run(const AttentionArgs& args, const Step& generic, Stream& stream) override {
    const auto& step = static_cast<const CudaStep&>(generic);
    if (step.num_rows() == 0) return;
    launch_plain_attention({.inputs = make_inputs(args, step),
                            .num_rows = step.device().num_rows,
                            .positions = step.device().positions,
                            .seq_of_row = step.device().seq_of_row,
                            .out = args.out.as<__nv_bfloat16>(),
                            .head_dim = desc_.attention.head_dim},
                           step.launch_rows(), cuda_stream(stream));
  }
};

Result<AttentionPlanner*> find_planner(Context& context, const AttentionShape& shape) {
  for (const auto& planner : context.planners) {
    auto* found = dynamic_cast<AttentionPlanner*>(planner.get());
    if (found != nullptr && found->shape() == shape) return found;
  }
  auto planner = std::make_unique<AttentionPlanner>(shape, context.num_sms);
  MEDLEY_TRY(planner->reserve(context.step));
  AttentionPlanner* made = planner.get();
  context.planners.push_back(std::move(planner));
  return made;
}

}  // namespace

Result<std::unique_ptr<Attention>> plan_attention(Context& context, const AttentionDesc& desc) {
  const AttentionSpec& spec = desc.attention;
  if (desc.dtype != DType::kBF16) {
    return unsupported(fmt::format("attention on CUDA: activations are bfloat16, found {}",
                                   medley::to_string(desc.dtype)));
  }
  if (spec.num_kv_heads < 1 || spec.num_heads % spec.num_kv_heads != 0) {
    return invalid_argument(fmt::format("num_heads {} is not a multiple of num_kv_heads {}",
                                        spec.num_heads, spec.num_kv_heads));
  }
  if (is_tiled_head_dim(spec.head_dim)) {
    MEDLEY_TRY_ASSIGN(AttentionPlanner * planner,
                      find_planner(context, {.num_heads = spec.num_heads,
                                             .num_kv_heads = spec.num_kv_heads,
                                             .head_dim = spec.head_dim,
                                             .window = desc.window}));
    return std::unique_ptr<Attention>(std::make_unique<TiledAttention>(desc, *planner));
  }
  if (spec.head_dim < 4 || spec.head_dim % 4 != 0 || spec.head_dim > kMaxPlainHeadDim) {
    return unsupported(
        fmt::format("attention on CUDA: head_dim must be a multiple of 4 up to {}, found {}",
                    kMaxPlainHeadDim, spec.head_dim));
  }
  return std::unique_ptr<Attention>(std::make_unique<PlainAttention>(desc));
}

}  // namespace medley::cuda
