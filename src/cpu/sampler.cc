#include <algorithm>
#include <cmath>

#include "cpu/parallel.h"
#include "cpu/philox.h"
#include "cpu/planned_ops.h"
#include "cpu/sampler_slots.h"
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
        slots_(desc),
        out_(desc.max_seqs),
        ids_(desc.vocab_size * context.pool.num_threads()),
        adjusted_(desc.vocab_size * context.pool.num_threads()) {}

  SampleOutput make_output() const override { return SampleOutput(desc_.max_seqs); }

  void set_slot(int slot, const SamplerParams& params, Stream&) override {
    slots_.set(slot, params);
  }

  void run(const ConstTensorView& logits, const Step& generic, Stream&) override {
    const CpuStep& step = cpu_step(generic);
    const int rows = step.num_logit_rows();
    MEDLEY_CHECK_LE(rows, desc_.max_seqs);
    // One share of the rows, and scratch of one row, per thread.
    const int shares = context_.pool.num_threads();
    parallel_items(context_.pool, shares, rows * desc_.vocab_size * 8, [&](int64_t share) {
      const Scratch scratch{.ids = ids_.data() + share * desc_.vocab_size,
                            .adjusted = adjusted_.data() + share * desc_.vocab_size};
      for (int i = static_cast<int>(share); i < rows; i += shares) {
        const float* row = logits.as<float>() + i * desc_.vocab_size;
        if (step.logit_targets[i] == kSampleToken) {
          sample_row(row, step, i, scratch);
        } else {
          score_row(row, step, i, scratch);
        }
      }
    });
  }

  void copy_output(const Step& step, Stream&, SampleOutput& out) override {
    const auto rows = static_cast<size_t>(step.num_logit_rows());
    const auto copy = [&](const auto& from, const auto& to, size_t per_row) {
      MEDLEY_CHECK_LE(rows * per_row, to.size());
      std::copy_n(from.begin(), rows * per_row, to.begin());
    };
    copy(out_.token_ids, out.token_ids, 1);
    copy(out_.logprobs, out.logprobs, 1);
    copy(out_.ranks, out.ranks, 1);
    copy(out_.top_ids, out.top_ids, kMaxTopLogprobs);
    copy(out_.top_logprobs, out.top_logprobs, kMaxTopLogprobs);
  }

 private:
  struct Scratch {
    int32_t* ids = nullptr;
    float* adjusted = nullptr;
  };

  void sample_row(const float* logits, const CpuStep& step, int i, const Scratch& scratch) {
    const int slot = step.sampler_slots[step.logit_seqs[i]];
    const SamplerParams& params = slots_.params(slot);
    const float* adjusted = slots_.adjust(slot, logits, scratch.adjusted);
    int32_t token = 0;
    if (params.temperature <= 0.0f) {
      token = argmax(adjusted, desc_.vocab_size);
    } else {
      const auto position = static_cast<uint32_t>(step.positions[step.logit_rows[i]]);
      token = draw(params, adjusted, scratch.ids, desc_.vocab_size,
                   uniform_draw(params.seed, position));
    }
    slots_.add_output(slot, token);
    out_.token_ids[i] = token;
    context_.sampled_ids[slot] = token;
    if (params.num_top_logprobs >= 0) {
      write_logprobs(logits, params.num_top_logprobs, i, scratch.ids);
    }
  }

  void score_row(const float* logits, const CpuStep& step, int i, const Scratch& scratch) {
    const SamplerParams& params = slots_.params(step.sampler_slots[step.logit_seqs[i]]);
    out_.token_ids[i] = step.logit_targets[i];
    write_logprobs(logits, std::max(params.num_prompt_logprobs, 0), i, scratch.ids);
  }

  // Of out_.token_ids[i] and the best `num_top`.
  void write_logprobs(const float* logits, int64_t num_top, int i, int32_t* ids) {
    const int32_t token = out_.token_ids[i];
    Ranking ranking(logits, ids, desc_.vocab_size);
    const double best = logits[ranking.at(0)];
    double sum = 0.0;
    int32_t rank = 1;
    for (int32_t id = 0; id < desc_.vocab_size; ++id) {
      sum += std::exp(logits[id] - best);
      rank += logits[id] > logits[token] || (logits[id] == logits[token] && id < token);
    }
    const double log_sum = best + std::log(sum);
    out_.logprobs[i] = static_cast<float>(logits[token] - log_sum);
    out_.ranks[i] = rank;
    for (int64_t j = 0; j < std::min(num_top, desc_.vocab_size); ++j) {
      const int32_t id = ranking.at(j);
      out_.top_ids[int64_t{i} * kMaxTopLogprobs + j] = id;
      out_.top_logprobs[int64_t{i} * kMaxTopLogprobs + j] =
          static_cast<float>(logits[id] - log_sum);
    }
  }

  Context& context_;
  SamplerDesc desc_;
  SamplerSlots slots_;
  SampleOutput out_;  // of the last run
  std::vector<int32_t> ids_;
  std::vector<float> adjusted_;
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
