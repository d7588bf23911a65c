#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "adapter/store.h"
#include "core/request.h"
#include "core/token_event.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/executor.h"
#include "engine/sequence.h"
#include "kv/page_pool.h"
#include "kv/prefix_cache.h"
#include "sched/plan_step.h"

namespace medley {

// The engine without its thread and queue: instructions go in, turns are taken one by one, events
// come out.
//
// It is one step ahead of the host. A turn launches a step and then retires the one before it:
//
//   turn            1      2      3      4
//   host      launch A   B|ret A  C|ret B  D|ret C      B's decodes take A's tokens from the
//   sampler device          [  A  ][  B  ][  C  ][  D  ]
//
// A sequence that turns out, when A retires, to have ended has a row too many in B. Its sample is
// discarded; its pages and its adapter stay held until B retires. An end by length is foreseen and
// nothing is launched past it.
//
// Engine thread only.
class EngineCore {
 public:
  // `adapters` may be null: then only the base model is served.
  EngineCore(const EngineOptions& options, Executor& executor, AdapterStore* adapters);
  ~EngineCore();

  void add(Request request);  // checked by the caller; ids are unique
  void abort(RequestId id);
  void abort_all();
  void fill_adapter_slots();  // AdapterStore::fill_slots

  // Takes a turn. False when nothing could be done: until the next instruction, or until an
  // adapter arrives, another turn is in vain.
  bool step();

  std::vector<TokenEvent> take_events();

  int num_open() const { return num_open_; }  // requests whose last event is not out
  uint64_t num_left_queue() const { return num_left_queue_; }  // entered a step once, or ended
  bool is_healthy() const { return !fault_.has_value(); }
  const PagePool& pages() const { return pool_; }
  EngineStats stats() const;

 private:
  struct LaunchedRows {
    Sequence* seq = nullptr;
    Batch::Outputs outputs;
    int64_t end = 0;  // position after its last row
  };
  struct LaunchedStep {
    StepTicket ticket = 0;
    std::vector<LaunchedRows> rows;  // in the batch's order
    int64_t num_tokens = 0;
  };
  // What requests with the same adapter share, while there are any.
  struct AdapterGroup {
    int64_t id = 0;
    int num_open = 0;
    int num_pins = 0;
    int64_t since = 0;       // num_admissions_ when num_pins rose from 0
    int64_t gave_up_at = 0;  // clock_ when it fell to 0
  };

  bool launch_next();
  StepPlan plan();
  Admission try_acquire(Sequence& seq);
  void drop_pin(Sequence& seq);
  GateAnswer try_enter(Sequence& seq);
  void count_shared_pages(std::vector<SeqState>& running) const;
  void fail_refused();
  void preempt(int num_victims);
  void enter(Sequence& seq);
  void add_to_batch(Sequence& seq, int64_t num_tokens, LaunchedStep& step);
  void after_launch(LaunchedStep step);
  void retire_oldest();
  void accept(const LaunchedRows& rows, const SampleOutput& output, int output_idx,
              int64_t time_ns);
  void accept_token(Sequence& seq, const SampleOutput& output, int output_idx, TokenEvent& event);
  void end(Sequence& seq, FinishReason reason, std::optional<Error> error);
  TokenEvent& add_event(const Sequence& seq);
  void leave(Sequence& seq, SequenceState next);
  void release_if_done(Sequence& seq);
  void cache_pages(Sequence& seq, bool may_replace);
  void give_pages_back(Sequence& seq);
  void fail_all(const Error& error);
  SeqState state_of(const Sequence& seq) const;

  const EngineOptions options_;
  Executor& executor_;
  AdapterStore* adapters_;
  const ExecutorDesc desc_;
  const SchedulerLimits limits_;

  PagePool pool_;
  std::optional<PrefixCache> prefix_cache_;
  std::unordered_map<std::string, AdapterGroup> groups_;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;  // in order of admission
  std::vector<Sequence*> waiting_;
  std::vector<int> free_slots_;
  std::deque<LaunchedStep> in_flight_;
  std::unordered_map<std::string, Error> refused_;  // adapters, during one plan
  std::optional<Error> fault_;

  Batch batch_;
  std::vector<SlotUpdate> slot_updates_;
  std::vector<TokenEvent> events_;

  int num_open_ = 0;
  int64_t clock_ = 0;  // counts what must be put in order of time
  int64_t num_admissions_ = 0;
  int64_t num_groups_ = 0;
  uint64_t num_left_queue_ = 0;
  uint64_t num_steps_ = 0;
  uint64_t num_step_tokens_ = 0;
  std::array<uint64_t, kStepSizeBounds.size() + 1> num_steps_by_size_ = {};
  uint64_t num_prompt_tokens_ = 0;
  uint64_t num_generation_tokens_ = 0;
  uint64_t num_preemptions_ = 0;
  uint64_t num_prefix_cache_queries_ = 0;
  uint64_t num_prefix_cache_hits_ = 0;
};

}  // namespace medley
