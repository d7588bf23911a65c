#include "engine/sequence.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace medley {
namespace {

bool is_allowed(SequenceState from, SequenceState to) {
  switch (from) {
    case SequenceState::kWaiting:
      return to == SequenceState::kRunning || to == SequenceState::kEnded;
    case SequenceState::kRunning:
      return to != SequenceState::kRunning;
    case SequenceState::kFinishing:
      return to == SequenceState::kEnded;
    case SequenceState::kEnded:
      return false;
  }
  return false;
}

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

void Sequence::set_state(SequenceState next) {
  MEDLEY_CHECK(is_allowed(state_, next),
               fmt::format("request {}: state {} -> {}", request.id, static_cast<int>(state_),
                           static_cast<int>(next)));
  state_ = next;
}

std::vector<LogitEdit> logit_edits(const SamplingParams& sampling,
                                   const std::vector<int32_t>& eos_token_ids, int64_t vocab_size) {
  std::vector<LogitEdit> edits;
  const auto add = [&](const LogitEdit& edit) {
    if (edit.token_id >= 0 && edit.token_id < vocab_size) edits.push_back(edit);
  };
  for (const auto& [token_id, bias] : sampling.logit_bias) add({.token_id = token_id, .add = bias});
  if (sampling.min_tokens == 0) return edits;
  for (const auto* ids : {&eos_token_ids, &sampling.stop_token_ids}) {
    for (const int32_t id : *ids) {
      add({.token_id = id,
           .add = -std::numeric_limits<float>::infinity(),
           .num_outputs = sampling.min_tokens});
    }
  }
  return edits;
}

std::optional<FinishReason> finish_reason(const Sequence& seq,
                                          const std::vector<int32_t>& eos_token_ids) {
  const SamplingParams& sampling = seq.request.sampling;
  const int32_t token_id = seq.tokens.back();
  if (seq.num_output() > sampling.min_tokens) {
    if (!sampling.ignore_eos && contains(eos_token_ids, token_id)) return FinishReason::kStop;
    if (contains(sampling.stop_token_ids, token_id)) return FinishReason::kStop;
  }
  if (static_cast<int64_t>(seq.tokens.size()) >= seq.max_tokens) return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace medley
