#include "engine/engine_core.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "kv/page_table.h"

namespace medley {
namespace {

// Views into the sequence.
SamplerParams sampler_params(const Sequence& seq) {
  const SamplingParams& s = seq.request.sampling;
  const std::span<const int32_t> tokens = seq.tokens;
  return {.temperature = s.temperature,
          .top_p = s.top_p,
          .top_k = s.top_k,
          .min_p = s.min_p,
          .seed = s.seed,
          .num_top_logprobs = s.num_top_logprobs,
          .num_prompt_logprobs = s.num_prompt_logprobs,
          .repetition_penalty = s.repetition_penalty,
          .frequency_penalty = s.frequency_penalty,
          .presence_penalty = s.presence_penalty,
          .prompt_ids = tokens.first(seq.num_prompt()),
          .output_ids = tokens.subspan(seq.num_prompt()),
          .edits = seq.logit_edits};
}

std::vector<TokenLogprob> top_logprobs(const SampleOutput& output, int output_idx, int num_top) {
  std::vector<TokenLogprob> top;
  for (int i = 0; i < num_top; ++i) {
    const size_t at = static_cast<size_t>(output_idx) * kMaxTopLogprobs + i;
    top.push_back({output.top_ids[at], output.top_logprobs[at]});
  }
  return top;
}

}  // namespace

EngineCore::EngineCore(const EngineOptions& options, Executor& executor, AdapterStore* adapters)
    : options_(options),
      executor_(executor),
      adapters_(adapters),
      desc_(executor.desc()),
      limits_({.max_num_seqs = options.max_num_seqs,
               .max_num_batched_tokens = options.max_num_batched_tokens,
               .page_size = desc_.page_size,
               .max_pages = desc_.step.max_pages,
               .max_adapters = options.max_loras,
               .max_logit_rows = desc_.step.max_seqs}),
      pool_(desc_.num_pages),
      batch_(desc_.step, desc_.page_size) {
  if (options.enable_prefix_caching) prefix_cache_.emplace(pool_, desc_.page_size);
  for (int slot = options.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

EngineCore::~EngineCore() {
  abort_all();
  while (!in_flight_.empty()) retire_oldest();
}

void EngineCore::add(Request request) {
  const RequestId id = request.id;
  auto [it, is_new] = sequences_.emplace(id, std::make_unique<Sequence>(std::move(request)));
  MEDLEY_CHECK(is_new, fmt::format("request id {} is in use", id));
  Sequence& seq = *it->second;
  seq.arrival = ++clock_;
  seq.max_tokens =
      std::min<int64_t>(seq.num_prompt() + seq.request.sampling.max_tokens, options_.max_model_len);
  seq.logit_edits = logit_edits(seq.request.sampling, options_.eos_token_ids, desc_.vocab_size);
  if (!seq.request.adapter.empty()) {
    AdapterGroup& group = groups_[seq.request.adapter];
    if (group.num_open++ == 0) group.id = kBaseModel + ++num_groups_;
    seq.adapter = group.id;
  }
  ++num_open_;
  waiting_.push_back(&seq);
  if (fault_) {
    end(seq, FinishReason::kError, fault_);
  } else if (seq.adapter != kBaseModel) {
    if (try_acquire(seq) == Admission::kEnter) drop_pin(seq);  // a load starts while it waits
    fail_refused();
  }
}

void EngineCore::abort(RequestId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || it->second->state() == SequenceState::kEnded) return;
  end(*it->second, FinishReason::kAbort, std::nullopt);
}

void EngineCore::abort_all() {
  std::vector<RequestId> ids;
  for (const auto& [id, seq] : sequences_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const RequestId id : ids) abort(id);
}

void EngineCore::fill_adapter_slots() {
  if (adapters_ != nullptr && !fault_) adapters_->fill_slots(executor_.stream());
}

bool EngineCore::step() {
  if (fault_) return false;
  const size_t num_in_flight = in_flight_.size();
  const bool did_something = launch_next();
  const bool has_launched = in_flight_.size() > num_in_flight;
  if (fault_ || in_flight_.empty()) return did_something;
  if (has_launched && in_flight_.size() < kMaxStepsInFlight) return true;
  retire_oldest();
  return true;
}

std::vector<TokenEvent> EngineCore::take_events() { return std::exchange(events_, {}); }

SeqState EngineCore::state_of(const Sequence& seq) const {
  SeqState state = {.num_tokens = seq.num_tokens(),
                    .num_computed = seq.num_computed,
                    .num_pages = seq.pages.num_pages(),
                    .logits_from = seq.scored_from(),
                    .logits_to = seq.scored_to(),
                    .adapter = seq.adapter,
                    .arrival = seq.arrival,
                    .waiting_since = seq.arrival,
                    .preempted = seq.preempted};
  if (seq.state() == SequenceState::kWaiting && seq.adapter != kBaseModel) {
    state.waiting_since = std::max(seq.arrival, groups_.at(seq.request.adapter).gave_up_at);
  }
  return state;
}

StepPlan EngineCore::plan() {
  std::vector<SeqState> running, waiting;
  running.reserve(running_.size());
  waiting.reserve(waiting_.size());
  for (const Sequence* seq : running_) running.push_back(state_of(*seq));
  for (const Sequence* seq : waiting_) waiting.push_back(state_of(*seq));
  const int num_free_pages = pool_.num_free() + pool_.num_cached();
  int num_free_entries = limits_.max_pages;
  for (const SeqState& seq : running) num_free_entries -= seq.num_pages;
  if (std::min(num_free_pages, num_free_entries) < static_cast<int>(running.size())) {
    count_shared_pages(running);  // somebody may have to be preempted
  }
  std::vector<ResidentAdapter> resident;
  for (const auto& [name, group] : groups_) {
    if (group.num_pins > 0) resident.push_back({group.id, group.since});
  }
  return plan_step(limits_,
                   {.running = running,
                    .waiting = waiting,
                    .resident = resident,
                    .num_free_pages = num_free_pages,
                    .num_admissions = num_admissions_,
                    .steps_in_flight = !in_flight_.empty()},
                   [&](int idx) { return try_enter(*waiting_[idx]); });
}

// A page goes back when its last holder does, so it counts as the first's.
void EngineCore::count_shared_pages(std::vector<SeqState>& running) const {
  std::unordered_set<int32_t> seen;
  for (size_t i = 0; i < running.size(); ++i) {
    const PageTable& pages = running_[i]->pages;
    for (int p = 0; p < pages.num_pages(); ++p) {
      if (!seen.insert(pages[p]).second) ++running[i].num_shared_pages;
    }
  }
}

// Besides the adapter, takes the pages that are cached of its tokens: all but the last, whose
// logits are wanted, and none from the first token on that is to be scored.
GateAnswer EngineCore::try_enter(Sequence& seq) {
  GateAnswer answer = try_acquire(seq);
  if (answer.admission != Admission::kEnter || !prefix_cache_) return answer;
  int64_t num_usable = seq.num_tokens() - 1;
  if (seq.scored_from() < seq.scored_to()) num_usable = std::min(num_usable, seq.scored_from());
  const int num_cached_before = pool_.num_cached();
  seq.cached = prefix_cache_->match(seq.pin->hash(), seq.tokens,
                                    static_cast<int>(num_usable / desc_.page_size), seq.pages);
  answer.num_pages = seq.cached.num_pages;
  answer.num_pages_unfree = num_cached_before - pool_.num_cached();
  answer.num_computed = static_cast<int64_t>(seq.cached.num_pages) * desc_.page_size;
  seq.num_computed = seq.num_retired = answer.num_computed;
  return answer;
}

Admission EngineCore::try_acquire(Sequence& seq) {
  if (seq.pin) return Admission::kEnter;
  const std::string& name = seq.request.adapter;
  if (name.empty()) {
    seq.pin.emplace();
    return Admission::kEnter;
  }
  if (refused_.contains(name)) return Admission::kRefused;
  Result<std::optional<AdapterPin>> pin = adapters_->acquire(name, executor_.stream());
  if (!pin.ok()) {
    refused_.emplace(name, pin.error());
    return Admission::kRefused;
  }
  if (!pin->has_value()) return Admission::kNotYet;
  MEDLEY_CHECK(!(*pin)->hash().empty(), "an adapter without a hash");
  seq.pin = std::move(*pin);
  AdapterGroup& group = groups_.at(name);
  if (group.num_pins++ == 0) group.since = num_admissions_;
  return Admission::kEnter;
}

// Unless it held the adapter before: a preempted sequence goes on with the same weights.
void EngineCore::drop_pin(Sequence& seq) {
  if (seq.preempted || seq.adapter == kBaseModel) return;
  seq.pin.reset();
  --groups_.at(seq.request.adapter).num_pins;
}

// An adapter that can't be had ends every request that waits for it.
void EngineCore::fail_refused() {
  const std::vector<Sequence*> waiting = waiting_;
  for (Sequence* seq : waiting) {
    const auto it = refused_.find(seq->request.adapter);
    if (it != refused_.end() && !seq->pin) end(*seq, FinishReason::kError, it->second);
  }
  refused_.clear();
}

bool EngineCore::launch_next() {
  const StepPlan step_plan = plan();
  const bool any_refused = !refused_.empty();
  if (step_plan.lacks_pages) {
    give_pages_back(*waiting_[*step_plan.lacks_pages]);
    drop_pin(*waiting_[*step_plan.lacks_pages]);
  }
  preempt(static_cast<int>(step_plan.preempted.size()));

  LaunchedStep step;
  batch_.clear();
  slot_updates_.clear();
  std::vector<Sequence*> entering;
  for (const Chunk& chunk : step_plan.running) {
    add_to_batch(*running_[chunk.seq_idx], chunk.num_tokens, step);
  }
  for (const Chunk& chunk : step_plan.admitted) entering.push_back(waiting_[chunk.seq_idx]);
  for (size_t i = 0; i < entering.size(); ++i) {
    enter(*entering[i]);
    add_to_batch(*entering[i], step_plan.admitted[i].num_tokens, step);
  }
  fail_refused();
  if (step.rows.empty()) return any_refused;

  Result<StepTicket> ticket = executor_.launch(batch_.inputs(), slot_updates_);
  if (!ticket.ok()) {
    fail_all(ticket.error());
    return true;
  }
  step.ticket = *ticket;
  after_launch(std::move(step));
  return true;
}

// The youngest lose their pages and start anew, their output so far being part of their prompt.
// What the prefix cache still has of them then is found again. Every launched step has retired by
// now.
void EngineCore::preempt(int num_victims) {
  for (int i = 0; i < num_victims; ++i) {
    Sequence& seq = *running_.back();
    MEDLEY_CHECK_EQ(seq.num_steps_in_flight, 0);
    MEDLEY_CHECK_EQ(seq.num_pending, 0);
    leave(seq, SequenceState::kWaiting);
    cache_pages(seq, /*may_replace=*/true);
    give_pages_back(seq);
    seq.preempted = true;
    waiting_.push_back(&seq);
    ++num_preemptions_;
  }
}

void EngineCore::enter(Sequence& seq) {
  std::erase(waiting_, &seq);
  seq.set_state(SequenceState::kRunning);
  running_.push_back(&seq);
  ++num_admissions_;
  if (seq.scheduled_ns == 0) {
    seq.scheduled_ns = now_ns();
    ++num_left_queue_;
    if (prefix_cache_ && seq.request.sampling.num_prompt_logprobs < 0) {
      num_prefix_cache_queries_ += seq.num_tokens();
      num_prefix_cache_hits_ += seq.num_computed;
    }
    seq.num_counted_prompt = seq.num_cached_tokens = seq.num_computed;
  }
  seq.preempted = false;
  seq.slot = free_slots_.back();
  free_slots_.pop_back();
  slot_updates_.push_back({*seq.slot, sampler_params(seq)});
}

void EngineCore::add_to_batch(Sequence& seq, int64_t num_tokens, LaunchedStep& step) {
  const int num_pages = num_pages_for(seq.num_tokens(), desc_.page_size);
  if (prefix_cache_) prefix_cache_->evict(num_pages - seq.pages.num_pages());
  const bool has_pages = seq.pages.grow(seq.num_tokens(), desc_.page_size, pool_);
  MEDLEY_CHECK(has_pages, "planned without pages");
  const Batch::Outputs outputs = batch_.add(seq, num_tokens);
  seq.num_computed += num_tokens;
  step.rows.push_back({&seq, outputs, seq.num_computed});
  step.num_tokens += num_tokens;
  seq.num_scored += outputs.num_scored;
}

void EngineCore::after_launch(LaunchedStep step) {
  ++num_steps_;
  num_step_tokens_ += step.num_tokens;
  ++num_steps_by_size_[std::ranges::lower_bound(kStepSizeBounds, step.num_tokens) -
                       kStepSizeBounds.begin()];
  for (const auto& [seq, outputs, end] : step.rows) {
    ++seq->num_steps_in_flight;
    const int64_t num_prompt = std::min(seq->num_computed, seq->num_prompt());
    if (num_prompt > seq->num_counted_prompt) {
      num_prompt_tokens_ += num_prompt - seq->num_counted_prompt;
      seq->num_counted_prompt = num_prompt;
    }
    if (!outputs.is_sampled) continue;
    ++seq->num_pending;
    if (seq->num_tokens() >= seq->max_tokens) leave(*seq, SequenceState::kFinishing);
  }
  in_flight_.push_back(std::move(step));
}

void EngineCore::retire_oldest() {
  const LaunchedStep step = std::move(in_flight_.front());
  in_flight_.pop_front();
  const Result<const SampleOutput*> output = executor_.wait(step.ticket);
  for (const LaunchedRows& rows : step.rows) --rows.seq->num_steps_in_flight;
  if (!output.ok()) {
    for (const LaunchedRows& rows : step.rows) release_if_done(*rows.seq);
    fail_all(output.error());
    return;
  }
  const int64_t time_ns = now_ns();
  int output_idx = 0;
  for (const LaunchedRows& rows : step.rows) {
    const int num_outputs = rows.outputs.num_scored + (rows.outputs.is_sampled ? 1 : 0);
    rows.seq->num_retired = rows.end;
    if (rows.seq->state() == SequenceState::kEnded) {
      release_if_done(*rows.seq);
    } else {
      cache_pages(*rows.seq, /*may_replace=*/false);
      if (num_outputs > 0) accept(rows, **output, output_idx, time_ns);
    }
    output_idx += num_outputs;
  }
}

void EngineCore::accept(const LaunchedRows& rows, const SampleOutput& output, int output_idx,
                        int64_t time_ns) {
  Sequence& seq = *rows.seq;
  TokenEvent& event = add_event(seq);
  event.time_ns = time_ns;
  const int num_top = seq.request.sampling.num_prompt_logprobs;
  for (int i = 0; i < rows.outputs.num_scored; ++i, ++output_idx) {
    event.prompt_logprobs.push_back(
        {.token = {output.token_ids[output_idx], output.logprobs[output_idx]},
         .rank = output.ranks[output_idx],
         .top = top_logprobs(output, output_idx, num_top)});
  }
  if (rows.outputs.is_sampled) accept_token(seq, output, output_idx, event);
}

void EngineCore::accept_token(Sequence& seq, const SampleOutput& output, int output_idx,
                              TokenEvent& event) {
  --seq.num_pending;
  const int32_t token_id = output.token_ids[output_idx];
  seq.tokens.push_back(token_id);
  ++num_generation_tokens_;

  event.token_id = token_id;
  const int num_top = seq.request.sampling.num_top_logprobs;
  if (num_top >= 0) event.logprob = output.logprobs[output_idx];
  event.top_logprobs = top_logprobs(output, output_idx, num_top);
  const std::optional<FinishReason> reason = finish_reason(seq, options_.eos_token_ids);
  if (!reason) return;
  event.finish = reason;
  if (*reason == FinishReason::kStop) event.stop_token_id = token_id;
  --num_open_;
  leave(seq, SequenceState::kEnded);
  release_if_done(seq);
}

void EngineCore::end(Sequence& seq, FinishReason reason, std::optional<Error> error) {
  TokenEvent& event = add_event(seq);
  event.finish = reason;
  event.error = std::move(error);
  event.time_ns = now_ns();
  --num_open_;
  if (seq.scheduled_ns == 0) ++num_left_queue_;
  leave(seq, SequenceState::kEnded);
  release_if_done(seq);
}

TokenEvent& EngineCore::add_event(const Sequence& seq) {
  TokenEvent& event = events_.emplace_back();
  event.request_id = seq.request.id;
  event.scheduled_ns = seq.scheduled_ns;
  event.num_cached_tokens = seq.num_cached_tokens;
  return event;
}

// The seat is free at once: what is launched with it goes before what comes to sit there.
void EngineCore::leave(Sequence& seq, SequenceState next) {
  if (seq.state() == SequenceState::kWaiting) std::erase(waiting_, &seq);
  if (seq.state() == SequenceState::kRunning) std::erase(running_, &seq);
  if (seq.slot) free_slots_.push_back(*seq.slot);
  seq.slot.reset();
  seq.set_state(next);
}

void EngineCore::release_if_done(Sequence& seq) {
  if (seq.state() != SequenceState::kEnded || seq.num_steps_in_flight > 0) return;
  cache_pages(seq, /*may_replace=*/true);
  if (seq.adapter != kBaseModel) {
    const auto group = groups_.find(seq.request.adapter);
    if (seq.pin && --group->second.num_pins == 0) group->second.gave_up_at = ++clock_;
    if (--group->second.num_open == 0) groups_.erase(group);
  }
  sequences_.erase(seq.request.id);
}

// What is both computed and known to the host. Other sequences' pages may take the place of its own
// only when no launched step has rows of it.
void EngineCore::cache_pages(Sequence& seq, bool may_replace) {
  if (!prefix_cache_ || seq.pages.num_pages() == 0) return;
  const int64_t num_known = static_cast<int64_t>(seq.tokens.size());
  const std::span<const int32_t> tokens = seq.tokens;
  prefix_cache_->insert(seq.pin->hash(), tokens.first(std::min(seq.num_retired, num_known)),
                        seq.pages, may_replace, seq.cached);
}

void EngineCore::give_pages_back(Sequence& seq) {
  seq.pages.clear();
  seq.cached = {};
  seq.num_computed = seq.num_retired = 0;
}

void EngineCore::fail_all(const Error& error) {
  log::error("the engine stops: {}", error.message);
  fault_ = error;
  for (const LaunchedStep& step : in_flight_) {
    for (const LaunchedRows& rows : step.rows) --rows.seq->num_steps_in_flight;
  }
  const std::deque<LaunchedStep> dropped = std::move(in_flight_);
  in_flight_.clear();
  std::vector<Sequence*> all;
  for (const auto& [id, seq] : sequences_) all.push_back(seq.get());
  for (Sequence* seq : all) {
    if (seq->state() == SequenceState::kEnded) {
      release_if_done(*seq);
    } else {
      end(*seq, FinishReason::kError, error);
    }
  }
}

EngineStats EngineCore::stats() const {
  EngineStats stats = {.num_running = num_open_ - static_cast<int>(waiting_.size()),
                       .num_waiting = static_cast<int>(waiting_.size()),
                       .num_pages = pool_.num_pages(),
                       .num_free_pages = pool_.num_free() + pool_.num_cached(),
                       .page_size = desc_.page_size,
                       .num_steps = num_steps_,
                       .num_step_tokens = num_step_tokens_,
                       .num_steps_by_size = num_steps_by_size_,
                       .num_prompt_tokens = num_prompt_tokens_,
                       .num_generation_tokens = num_generation_tokens_,
                       .num_preemptions = num_preemptions_,
                       .num_prefix_cache_queries = num_prefix_cache_queries_,
                       .num_prefix_cache_hits = num_prefix_cache_hits_,
                       .prefix_caching = prefix_cache_.has_value(),
                       .healthy = is_healthy()};
  for (const auto& [name, group] : groups_) {
    if (group.num_pins > 0) stats.running_adapters.push_back(name);
    if (group.num_open > group.num_pins) stats.waiting_adapters.push_back(name);
  }
  return stats;
}

}  // namespace medley
