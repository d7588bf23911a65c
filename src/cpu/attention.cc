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
    int64_t num_keys = 0;
    for (const int32_t position : step.positions) num_keys += position + 1 - first_key(position);
    const int64_t num_items = static_cast<int64_t>(step.num_rows()) * spec.num_kv_heads;
    const int64_t work =
        2 * num_keys * spec.num_heads * spec.head_dim / std::max<int64_t>(1, num_items);
    parallel_rows(context_.pool, num_items, work, [&](int64_t item) {
      run_group(args, step, static_cast<int>(item / spec.num_kv_heads),
                static_cast<int>(item % spec.num_kv_heads));
    });
  }

 private:
  int first_key(int position) const {
    return desc_.window > 0 ? std::max(0, position - desc_.window + 1) : 0;
  }

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
    float q_wide[kHeadBlock][kMaxHeadDim], wide[kKeyBlock][kMaxHeadDim];
    float scores[kHeadBlock][kKeyBlock];
    const float* q[kHeadBlock];
    const float* rows[kKeyBlock];
    for (int h = 0; h < num_heads; ++h) {
      q[h] = load_row(args.qkv.data, desc_.dtype, q_first + (first_head + h) * n, n, q_wide[h]);
      std::fill_n(states[h].acc, n, 0.0f);
    }

    // Blocks end at multiples of kKeyBlock, so they are a function of the positions alone.
    int begin = first_key(position);
    while (begin <= position) {
      const int count = std::min(position + 1, (begin / kKeyBlock + 1) * kKeyBlock) - begin;
      int64_t offsets[kKeyBlock];
      for (int t = 0; t < count; ++t) {
        offsets[t] = kv.token_offset(desc_.layer, step, seq, begin + t) + kv_head * n;
        rows[t] = load_row(kv.keys(), kv_dtype, offsets[t], n, wide[t]);
      }
      for (int h = 0; h < num_heads; ++h) {
        for (int t = 0; t < count; ++t) scores[h][t] = dot(q[h], rows[t], n) * spec.scale;
        rescale(states[h], scores[h], count, n);
      }
      for (int t = 0; t < count; ++t) {
        rows[t] = load_row(kv.values(), kv_dtype, offsets[t], n, wide[t]);
      }
      for (int h = 0; h < num_heads; ++h) mix(scores[h], rows, count, n, states[h].acc);
      begin += count;
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
    std::fill(scores + count, scores + kKeyBlock, max);
    for (int t = 0; t < kKeyBlock; t += 8) {
      const __m256 shifted = _mm256_sub_ps(_mm256_loadu_ps(scores + t), _mm256_set1_ps(max));
      _mm256_storeu_ps(scores + t, exp8(shifted));
    }
    std::fill(scores + count, scores + kKeyBlock, 0.0f);
    state.sum += sum_lanes(_mm256_add_ps(_mm256_loadu_ps(scores), _mm256_loadu_ps(scores + 8)));
  }

  // acc += sum over t of weights[t] * rows[t], in the order of t.
  static void mix(const float* weights, const float* const* rows, int count, int64_t n,
                  float* acc) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      __m256 sum = _mm256_loadu_ps(acc + i);
      for (int t = 0; t < count; ++t) {
        sum = _mm256_fmadd_ps(_mm256_set1_ps(weights[t]), _mm256_loadu_ps(rows[t] + i), sum);
      }
      _mm256_storeu_ps(acc + i, sum);
    }
    for (; i < n; ++i) {
      for (int t = 0; t < count; ++t) acc[i] = __builtin_fmaf(weights[t], rows[t][i], acc[i]);
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
