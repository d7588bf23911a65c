#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/kv_cache.h"
#include "cpu/parallel.h"
#include "cpu/planned_ops.h"
#include "cpu/simd.h"

namespace medley::cpu {
namespace {

constexpr int kMaxHeadDim = 512;
constexpr int kHeadBlock = 8;  // query heads that share one pass over the keys
constexpr int kKeyBlock = 16;  // keys between two rescalings

// Online softmax of one query head.
struct HeadState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;
  float acc[kMaxHeadDim];
};

class CpuAttention : public Attention {
 public:
  CpuAttention(Context& context, const AttentionDesc& desc) : context_(context), desc_(desc) {}

  void run(const AttentionArgs& args, const Step& generic, Stream&) override {
    const CpuStep& step = cpu_step(generic);
    const AttentionSpec& spec = desc_.attention;
    const int64_t mean_work =
        step.num_rows() == 0 ? 0 : spec.num_heads / spec.num_kv_heads * spec.head_dim * 64;
    parallel_rows(context_.pool, static_cast<int64_t>(step.num_rows()) * spec.num_kv_heads,
                  mean_work, [&](int64_t item) {
                    run_group(args, step, static_cast<int>(item / spec.num_kv_heads),
                              static_cast<int>(item % spec.num_kv_heads));
                  });
  }

 private:
  // The query heads of one row that read kv head `kv_head`.
  void run_group(const AttentionArgs& args, const CpuStep& step, int row, int kv_head) const {
    const int group = desc_.attention.num_heads / desc_.attention.num_kv_heads;
    for (int done = 0; done < group; done += kHeadBlock) {
      run_heads(args, step, row, kv_head, kv_head * group + done,
                std::min(kHeadBlock, group - done));
    }
  }

  void run_heads(const AttentionArgs& args, const CpuStep& step, int row, int kv_head,
                 int first_head, int num_heads) const {
    const AttentionSpec& spec = desc_.attention;
    const int64_t n = spec.head_dim;
    const auto& kv = static_cast<const CpuKvCache&>(*args.kv);
    const DType kv_dtype = kv.desc().dtype;
    const int seq = step.seq_of_row[row];
    const int position = step.positions[row];
    const int64_t q_first =
        static_cast<int64_t>(row) * (spec.num_heads + 2 * spec.num_kv_heads) * n;

    HeadState states[kHeadBlock];
    float q_wide[kHeadBlock][kMaxHeadDim], wide[kMaxHeadDim];
    float scores[kHeadBlock][kKeyBlock];
    const float* q[kHeadBlock];
    for (int h = 0; h < num_heads; ++h) {
      q[h] = load_row(args.qkv.data, desc_.dtype, q_first + (first_head + h) * n, n, q_wide[h]);
      std::fill_n(states[h].acc, n, 0.0f);
    }

    // Blocks end at multiples of kKeyBlock, so they are a function of the positions alone.
    int begin = desc_.window > 0 ? std::max(0, position - desc_.window + 1) : 0;
    while (begin <= position) {
      const int end = std::min(position + 1, (begin / kKeyBlock + 1) * kKeyBlock);
      for (int t = begin; t < end; ++t) {
        const float* k = load_row(
            kv.keys(), kv_dtype, kv.token_offset(desc_.layer, step, seq, t) + kv_head * n, n, wide);
        for (int h = 0; h < num_heads; ++h) scores[h][t - begin] = dot(q[h], k, n) * spec.scale;
      }
      for (int h = 0; h < num_heads; ++h) rescale(states[h], scores[h], end - begin, n);
      for (int t = begin; t < end; ++t) {
        const float* v =
            load_row(kv.values(), kv_dtype,
                     kv.token_offset(desc_.layer, step, seq, t) + kv_head * n, n, wide);
        for (int h = 0; h < num_heads; ++h) axpy(scores[h][t - begin], v, states[h].acc, n);
      }
      begin = end;
    }

    for (int h = 0; h < num_heads; ++h) {
      HeadState& state = states[h];
      if (spec.sinks) {
        const auto& sinks = static_cast<const PackedVector&>(*args.sinks).values;
        join_sink(state, sinks[first_head + h], n);
      }
      for (int64_t i = 0; i < n; ++i) state.acc[i] /= state.sum;
      store_row(state.acc, args.out.data, desc_.dtype,
                (static_cast<int64_t>(row) * spec.num_heads + first_head + h) * n, n);
    }
  }

  // Raises the maximum to that of the new scores, and turns those into weights.
  static void rescale(HeadState& state, float* scores, int count, int64_t n) {
    const float max = std::max(state.max, *std::max_element(scores, scores + count));
    raise_max(state, max, n);
    for (int t = 0; t < count; ++t) {
      scores[t] = std::exp(scores[t] - max);
      state.sum += scores[t];
    }
  }

  static void raise_max(HeadState& state, float max, int64_t n) {
    if (max == state.max) return;
    const float shrink = std::exp(state.max - max);
    state.max = max;
    state.sum *= shrink;
    for (int64_t i = 0; i < n; ++i) state.acc[i] *= shrink;
  }

  static void join_sink(HeadState& state, float sink, int64_t n) {
    raise_max(state, std::max(state.max, sink), n);
    state.sum += std::exp(sink - state.max);
  }

  Context& context_;
  AttentionDesc desc_;
};

}  // namespace

Result<std::unique_ptr<Attention>> make_attention(Context& context, const AttentionDesc& desc) {
  MEDLEY_TRY(check_dtype(desc.dtype));
  const AttentionSpec& spec = desc.attention;
  if (spec.head_dim > kMaxHeadDim) {
    return unsupported(fmt::format("head_dim {} is above {}", spec.head_dim, kMaxHeadDim));
  }
  if (spec.num_kv_heads < 1 || spec.num_heads % spec.num_kv_heads != 0) {
    return invalid_argument(fmt::format("num_heads {} is not a multiple of num_kv_heads {}",
                                        spec.num_heads, spec.num_kv_heads));
  }
  return std::unique_ptr<Attention>(std::make_unique<CpuAttention>(context, desc));
}

}  // namespace medley::cpu
