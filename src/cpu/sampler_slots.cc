#include "cpu/sampler_slots.h"

#include <algorithm>

#include "base/check.h"

namespace medley::cpu {
namespace {

constexpr uint32_t kInPrompt = uint32_t{1} << 31;

}  // namespace

SamplerSlots::SamplerSlots(const SamplerDesc& desc)
    : vocab_size_(desc.vocab_size),
      slots_(desc.max_seqs),
      edits_(static_cast<size_t>(desc.max_seqs) * kMaxLogitEdits),
      counts_(static_cast<size_t>(desc.max_seqs) * desc.vocab_size) {}

void SamplerSlots::set(int idx, const SamplerParams& params) {
  MEDLEY_CHECK(idx >= 0 && idx < static_cast<int>(slots_.size()), fmt::format("slot {}", idx));
  MEDLEY_CHECK_LE(params.num_top_logprobs, kMaxTopLogprobs);
  MEDLEY_CHECK_LE(params.num_prompt_logprobs, kMaxTopLogprobs);
  MEDLEY_CHECK_LE(params.edits.size(), size_t{kMaxLogitEdits});
  Slot& slot = slots_[idx];
  slot = {.params = params,
          .num_edits = static_cast<int>(params.edits.size()),
          .num_outputs = static_cast<int32_t>(params.output_ids.size()),
          .has_penalties = params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f ||
                           params.presence_penalty != 0.0f};
  slot.params.prompt_ids = {};
  slot.params.output_ids = {};
  slot.params.edits = {};
  std::ranges::copy(params.edits, edits_.begin() + int64_t{idx} * kMaxLogitEdits);
  for (const LogitEdit& edit : params.edits) {
    MEDLEY_CHECK(edit.token_id >= 0 && edit.token_id < vocab_size_,
                 fmt::format("edit of token {}", edit.token_id));
    slot.edits_end = std::max(slot.edits_end, edit.num_outputs);
  }
  if (!slot.has_penalties) return;
  uint32_t* const counts_of_token = counts(idx);
  std::fill(counts_of_token, counts_of_token + vocab_size_, 0);
  for (const int32_t id : params.prompt_ids) counts_of_token[id] = kInPrompt;
  for (const int32_t id : params.output_ids) ++counts_of_token[id];
}

const float* SamplerSlots::adjust(int idx, const float* logits, float* scratch) const {
  const Slot& slot = slots_[idx];
  const bool has_edits = slot.num_outputs < slot.edits_end;
  if (!has_edits && !slot.has_penalties) return logits;
  std::copy(logits, logits + vocab_size_, scratch);
  const LogitEdit* const edits = edits_.data() + int64_t{idx} * kMaxLogitEdits;
  for (int i = 0; has_edits && i < slot.num_edits; ++i) {
    if (slot.num_outputs < edits[i].num_outputs) scratch[edits[i].token_id] += edits[i].add;
  }
  if (!slot.has_penalties) return scratch;
  const SamplerParams& params = slot.params;
  const uint32_t* const counts_of_token = counts_.data() + idx * vocab_size_;
  for (int64_t id = 0; id < vocab_size_; ++id) {
    if (counts_of_token[id] == 0) continue;
    float& logit = scratch[id];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    const uint32_t count = counts_of_token[id] & ~kInPrompt;
    if (count == 0) continue;
    logit -= params.frequency_penalty * static_cast<float>(count);
    logit -= params.presence_penalty;
  }
  return scratch;
}

void SamplerSlots::add_output(int idx, int32_t token_id) {
  Slot& slot = slots_[idx];
  ++slot.num_outputs;
  if (slot.has_penalties) ++counts(idx)[token_id];
}

}  // namespace medley::cpu
