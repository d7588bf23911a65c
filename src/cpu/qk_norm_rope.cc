#include "cpu/kv_cache.h"
#include "cpu/norm.h"
#include "cpu/parallel.h"
#include "cpu/planned_ops.h"
#include "cpu/rope.h"
#include "cpu/simd.h"

namespace medley::cpu {
namespace {

constexpr int kMaxHeadDim = 512;

class CpuQkNormRope : public QkNormRopeAppend {
 public:
  CpuQkNormRope(Context& context, const QkNormRopeAppendDesc& desc)
      : context_(context), desc_(desc) {
    if (desc.rope_enabled) table_ = context.rope_tables.get(desc.rope, desc.max_position);
  }

  void run(const QkNormRopeAppendArgs& args, const Step& generic, Stream&) override {
    const CpuStep& step = cpu_step(generic);
    auto& kv = static_cast<CpuKvCache&>(*args.kv);
    MEDLEY_CHECK_EQ(kv.desc().num_kv_heads, desc_.attention.num_kv_heads);
    MEDLEY_CHECK_EQ(kv.desc().head_dim, desc_.attention.head_dim);
    const int64_t cols = static_cast<int64_t>(num_heads() + 2 * num_kv_heads()) * head_dim();
    parallel_rows(context_.pool, step.num_rows(), 4 * cols,
                  [&](int64_t row) { run_row(args, step, kv, row, row * cols); });
  }

 private:
  int num_heads() const { return desc_.attention.num_heads; }
  int num_kv_heads() const { return desc_.attention.num_kv_heads; }
  int64_t head_dim() const { return desc_.attention.head_dim; }

  void run_row(const QkNormRopeAppendArgs& args, const CpuStep& step, CpuKvCache& kv, int64_t row,
               int64_t first) const {
    const int64_t n = head_dim();
    const int position = step.positions[row];
    MEDLEY_CHECK(!desc_.rope_enabled || position < desc_.max_position);
    const int64_t kv_first = kv.token_offset(desc_.layer, step, step.seq_of_row[row], position);
    const DType kv_dtype = kv.desc().dtype;
    float head[kMaxHeadDim];
    for (int h = 0; h < num_heads() + num_kv_heads(); ++h) {
      const bool is_q = h < num_heads();
      load_head(args.qkv, first + h * n, head);
      if (desc_.attention.qk_norm) {
        const auto& norm = static_cast<const PackedVector&>(is_q ? *args.q_norm : *args.k_norm);
        rms_norm(head, norm.values.data(), desc_.norm_eps, n, head);
      }
      if (desc_.rope_enabled) apply_rope(*table_, position, head);
      if (is_q) {
        store_row(head, args.qkv.data, desc_.dtype, first + h * n, n);
      } else {
        store_row(head, kv.keys(), kv_dtype, kv_first + (h - num_heads()) * n, n);
      }
    }
    for (int h = 0; h < num_kv_heads(); ++h) {
      load_head(args.qkv, first + (num_heads() + num_kv_heads() + h) * n, head);
      store_row(head, kv.values(), kv_dtype, kv_first + h * n, n);
    }
  }

  void load_head(const TensorView& qkv, int64_t offset, float* head) const {
    const float* found = load_row(qkv.data, desc_.dtype, offset, head_dim(), head);
    if (found != head) std::copy_n(found, head_dim(), head);
  }

  Context& context_;
  QkNormRopeAppendDesc desc_;
  std::shared_ptr<const RopeTable> table_;
};

}  // namespace

Result<std::unique_ptr<QkNormRopeAppend>> make_qk_norm_rope(Context& context,
                                                            const QkNormRopeAppendDesc& desc) {
  MEDLEY_TRY(check_dtype(desc.dtype));
  if (desc.attention.head_dim > kMaxHeadDim) {
    return unsupported(
        fmt::format("head_dim {} is above {}", desc.attention.head_dim, kMaxHeadDim));
  }
  if (desc.rope_enabled && (desc.rope.rotary_dim < 2 || desc.rope.rotary_dim % 2 != 0 ||
                            desc.rope.rotary_dim > desc.attention.head_dim)) {
    return invalid_argument(fmt::format("rotary_dim {}: expected an even number from 2 to {}",
                                        desc.rope.rotary_dim, desc.attention.head_dim));
  }
  return std::unique_ptr<QkNormRopeAppend>(std::make_unique<CpuQkNormRope>(context, desc));
}

}  // namespace medley::cpu
