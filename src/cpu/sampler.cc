#include <algorithm>
#include <cmath>

#include "cpu/parallel.h"
#include "cpu/philox.h"
#include "cpu/planned_ops.h"
#include "cpu/step.h"

namespace medley::cpu {
namespace {

// The tokens of one row by falling logit, ties by rising id, sorted only as far as asked for.
class Ranking {
 public:
  Ranking(const float* logits, int32_t* ids, int64_t count)
      : logits_(logits), ids_(ids), count_(count), heap_end_(ids + count) {
    for (int32_t i = 0; i < count; ++i) ids_[i] = i;
    std::make_heap(ids_, heap_end_, behind());
  }

  int64_t count() const { return count_; }

  // The i-th best id; i is at most one past the largest i asked for before.
  int32_t at(int64_t i) {
    if (i == num_sorted_) {
      std::pop_heap(ids_, heap_end_, behind());
      --heap_end_;
      ++num_sorted_;
    }
    return ids_[count_ - 1 - i];  // the best id was moved to the back first
  }

 private:
  struct Behind {
    const float* logits;
    bool operator()(int32_t a, int32_t b) const {
      return logits[a] != logits[b] ? logits[a] < logits[b] : a > b;
    }
  };
  Behind behind() const { return {logits_}; }

  const float* logits_;
  int32_t* ids_;
  int64_t count_;
  int32_t* heap_end_;
  int64_t num_sorted_ = 0;
};

int32_t argmax(const float* logits, int64_t count) {
  int32_t best = 0;
  for (int32_t i = 1; i < count; ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return best;
}

// Draws from the filtered distribution by inverting its cumulative sum over the ranking. Weights
// are relative to the best token's and need no normalisation: a token counts as
// exp((logit - best) / temperature).
int32_t draw(const SamplerParams& params, const float* logits, int32_t* ids, int64_t vocab_size,
             double uniform) {
  Ranking ranking(logits, ids, vocab_size);
  const float best = logits[ranking.at(0)];
  const double temperature = params.temperature;
  const auto weight = [&](int32_t id) {
    return std::exp((static_cast<double>(logits[id]) - best) / temperature);
  };

  int64_t limit = vocab_size;  // tokens that the filters leave
  double total = 0.0;          // their weight
  if (params.top_k > 0 && params.top_k < vocab_size) {
    limit = params.top_k;
    for (int64_t i = 0; i < limit; ++i) total += weight(ranking.at(i));
  } else {
    for (int32_t id = 0; id < vocab_size; ++id) total += weight(id);
  }
  if (params.top_p < 1.0f) {
    // The shortest prefix that reaches top_p, and always the best token.
    const double wanted = static_cast<double>(params.top_p) * total;
    double sum = weight(ranking.at(0));
    int64_t kept = 1;
    while (kept < limit && sum < wanted) sum += weight(ranking.at(kept++));
    limit = kept;
    total = sum;
  }
  if (params.min_p > 0.0f) {
    double sum = weight(ranking.at(0));
    int64_t kept = 1;
    while (kept < limit) {
      const double next = weight(ranking.at(kept));
      if (next < params.min_p) break;
      sum += next;
      ++kept;
    }
    limit = kept;
    total = sum;
  }

  double sum = 0.0;
  for (int64_t i = 0; i + 1 < limit; ++i) {
    sum += weight(ranking.at(i));
    if (sum > uniform * total) return ranking.at(i);
  }
  return ranking.at(limit - 1);
}

class CpuSampler : public Sampler {
 public:
  CpuSampler(Context& context, const SamplerDesc& desc)
      : context_(context),
        desc_(desc),
        params_(desc.max_seqs),
        ids_(desc.vocab_size * context.pool.num_threads()) {}

  void set_slot(int slot, const SamplerParams& params, Stream&) override {
    MEDLEY_CHECK(slot >= 0 && slot < desc_.max_seqs, fmt::format("slot {}", slot));
    MEDLEY_CHECK_LE(params.num_top_logprobs, kMaxTopLogprobs);
    params_[slot] = params;
  }

  void run(const ConstTensorView& logits, const Step& generic, Stream&,
           SampleOutput& out) override {
    const CpuStep& step = cpu_step(generic);
    const int rows = step.num_logit_rows();
    MEDLEY_CHECK_LE(static_cast<size_t>(rows), out.token_ids.size());
    // One share of the rows, and one list of ids, per thread.
    const int shares = context_.pool.num_threads();
    parallel_items(context_.pool, shares, rows * desc_.vocab_size * 8, [&](int64_t share) {
      int32_t* ids = ids_.data() + share * desc_.vocab_size;
      for (int i = static_cast<int>(share); i < rows; i += shares) {
        sample_row(logits.as<float>() + i * desc_.vocab_size, step, i, ids, out);
      }
    });
  }

 private:
  void sample_row(const float* logits, const CpuStep& step, int i, int32_t* ids,
                  SampleOutput& out) {
    const int slot = step.sampler_slots[step.logit_seqs[i]];
    const SamplerParams& params = params_[slot];
    int32_t token = 0;
    if (params.temperature <= 0.0f) {
      token = argmax(logits, desc_.vocab_size);
    } else {
      const auto position = static_cast<uint32_t>(step.positions[step.logit_rows[i]]);
      token = draw(params, logits, ids, desc_.vocab_size, uniform_draw(params.seed, position));
    }
    out.token_ids[i] = token;
    context_.sampled_ids[slot] = token;
    if (params.num_top_logprobs >= 0) write_logprobs(logits, params, token, i, ids, out);
  }

  void write_logprobs(const float* logits, const SamplerParams& params, int32_t token, int i,
                      int32_t* ids, SampleOutput& out) const {
    Ranking ranking(logits, ids, desc_.vocab_size);
    const double best = logits[ranking.at(0)];
    double sum = 0.0;
    for (int64_t id = 0; id < desc_.vocab_size; ++id) sum += std::exp(logits[id] - best);
    const double log_sum = best + std::log(sum);
    out.logprobs[i] = static_cast<float>(logits[token] - log_sum);
    const int64_t wanted = std::min<int64_t>(params.num_top_logprobs, desc_.vocab_size);
    for (int64_t j = 0; j < wanted; ++j) {
      const int32_t id = ranking.at(j);
      out.top_ids[i * kMaxTopLogprobs + j] = id;
      out.top_logprobs[i * kMaxTopLogprobs + j] = static_cast<float>(logits[id] - log_sum);
    }
  }

  Context& context_;
  SamplerDesc desc_;
  std::vector<SamplerParams> params_;  // by slot
  std::vector<int32_t> ids_;
};

}  // namespace

Result<std::unique_ptr<Sampler>> make_sampler(Context& context, const SamplerDesc& desc) {
  if (desc.max_seqs < 1 || desc.vocab_size < 1) {
    return invalid_argument(fmt::format("sampler of {} slots and {} tokens: expected at least 1",
                                        desc.max_seqs, desc.vocab_size));
  }
  if (context.sampled_ids.size() < static_cast<size_t>(desc.max_seqs)) {
    context.sampled_ids.resize(desc.max_seqs);
  }
  return std::unique_ptr<Sampler>(std::make_unique<CpuSampler>(context, desc));
}

}  // namespace medley::cpu
