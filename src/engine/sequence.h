#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "adapter/store.h"
#include "backend/sampler.h"
#include "core/request.h"
#include "core/token_event.h"
#include "kv/page_table.h"
#include "kv/prefix_cache.h"

namespace medley {

//  kWaiting ──admit──> kRunning ──last token launched──> kFinishing
//     ^ └───────preempt───┘ │                                │
//     │                     └────────> kEnded <──────────────┘
//     └── submit                ^── abort or error, from any state
//
// A sequence that ended stays until no launched step has rows of it; then its pages and its adapter
// are released.
enum class SequenceState : uint8_t {
  kWaiting,    // no pages, no seat
  kRunning,    // a seat: it can have rows in the next step
  kFinishing,  // every token it may have is launched; results are on their way
  kEnded,      // its last event is out
};

// One request in the engine.
struct Sequence {
  explicit Sequence(Request r) : request(std::move(r)), tokens(request.prompt) {}

  // Checks that the change is one of the picture's.
  void set_state(SequenceState next);
  SequenceState state() const { return state_; }

  int64_t num_prompt() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t num_output() const { return static_cast<int64_t>(tokens.size()) - num_prompt(); }
  // Known tokens and those that launched steps are sampling.
  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()) + num_pending; }
  // The positions whose logits score the prompt's tokens that are not scored yet. They have to be
  // computed: pages that hold them already are of no use to this sequence.
  int64_t scored_from() const { return num_scored - 1; }
  int64_t scored_to() const {
    return request.sampling.num_prompt_logprobs >= 0 ? num_prompt() - 1 : 0;
  }

  Request request;
  std::vector<int32_t> tokens;     // prompt and output, as far as the host knows them
  int num_pending = 0;             // sampled by launched steps, ids unknown to the host
  int64_t num_computed = 0;        // in the cache once every launched step has run
  int64_t num_retired = 0;         // in the cache: the step that computed it is done
  int64_t max_tokens = 0;          // prompt + output, by max_tokens and by context
  int64_t num_counted_prompt = 0;  // prompt tokens in the statistics
  int64_t num_scored = 1;          // prompt tokens with log-probabilities launched, and the first
  int64_t arrival = 0;             // order of submission
  int64_t scheduled_ns = 0;        // first admission
  int64_t num_cached_tokens = 0;   // found in the prefix cache then
  int64_t adapter = 0;             // group id, kBaseModel without one
  bool preempted = false;          // waiting to start anew
  int num_steps_in_flight = 0;     // launched steps with rows of it
  std::optional<int> slot;         // seat and sampler slot, while running
  std::optional<AdapterPin> pin;   // from first admission on
  PageTable pages;
  PrefixCache::Path cached;            // how much of `pages` is in the prefix cache
  std::vector<LogitEdit> logit_edits;  // what the sampler does to logits before penalties

 private:
  SequenceState state_ = SequenceState::kWaiting;
};

// The request's logit_bias, and its end and stop tokens ruled out until min_tokens. Ids outside the
// vocabulary are left out.
std::vector<LogitEdit> logit_edits(const SamplingParams& sampling,
                                   const std::vector<int32_t>& eos_token_ids, int64_t vocab_size);

// The end that `token_id`, just appended to the sequence, brings about, if any. `eos_token_ids` are
// the model's. An end token among the first min_tokens does not count.
std::optional<FinishReason> finish_reason(const Sequence& seq,
                                          const std::vector<int32_t>& eos_token_ids);

}  // namespace medley
