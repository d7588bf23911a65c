#include "sched/plan_step.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"
#include "kv/page_table.h"

namespace medley {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct AdapterLoad {
  int num_running = 0;
  int64_t since = 0;
};

class Planner {
 public:
  Planner(const SchedulerLimits& limits, const SchedulerState& state)
      : limits_(limits),
        state_(state),
        num_rows_left_(limits.max_num_batched_tokens),
        num_spare_logit_rows_(std::max<int64_t>(
            0, limits.max_logit_rows -
                   std::min<int64_t>(limits.max_num_seqs,
                                     state.running.size() + state.waiting.size()))),
        num_free_pages_(state.num_free_pages),
        num_free_entries_(limits.max_pages > 0 ? limits.max_pages : kNever),
        num_alive_(static_cast<int>(state.running.size())) {
    for (const SeqState& seq : state.running) num_free_entries_ -= seq.num_pages;
  }

  // Decodes one token per sequence, in order of admission. The victim of a preemption is the last
  // running sequence, so nothing that was planned already is undone.
  bool plan_decodes() {
    for (int i = 0; i < num_alive_; ++i) {
      const SeqState& seq = state_.running[i];
      if (seq.num_tokens - seq.num_computed != 1) continue;
      const int needed = num_pages_for(seq.num_tokens, limits_.page_size) - seq.num_pages;
      while (!has_pages(needed) && i < num_alive_) {
        if (state_.steps_in_flight) return false;
        preempt_youngest();
      }
      if (i >= num_alive_) break;
      take_pages(needed);
      num_rows_left_ -= 1;
      plan_.running.push_back({i, 1});
    }
    MEDLEY_CHECK_GE(num_rows_left_, 0);
    return true;
  }

  void plan_running_prefills() {
    for (int i = 0; i < num_alive_ && num_rows_left_ > 0; ++i) {
      const SeqState& seq = state_.running[i];
      const int64_t missing = seq.num_tokens - seq.num_computed;
      if (missing == 1) continue;
      MEDLEY_CHECK_GE(seq.num_pages, num_pages_for(seq.num_tokens, limits_.page_size));
      const int64_t num_tokens = fit_logit_rows(seq, std::min<int64_t>(missing, num_rows_left_));
      num_rows_left_ -= static_cast<int>(num_tokens);
      plan_.running.push_back({i, num_tokens});
    }
  }

  void plan_admissions(const AdmissionGate& gate) {
    if (state_.waiting.empty() || !plan_.preempted.empty()) return;
    count_adapters();
    std::vector<bool> passed_over(state_.waiting.size(), false);
    while (num_rows_left_ > 0 && num_alive_ < limits_.max_num_seqs) {
      const std::optional<int> idx = next_candidate(passed_over);
      if (!idx) return;
      const SeqState& seq = state_.waiting[*idx];
      passed_over[*idx] = true;
      const GateAnswer answer = gate(*idx);
      switch (answer.admission) {
        case Admission::kRefused:
          break;
        case Admission::kNotYet:
          absent_adapters_.insert(seq.adapter);
          break;
        case Admission::kEnter:
          if (!admit(*idx, answer)) {
            plan_.lacks_pages = idx;
            return;
          }
          break;
      }
    }
  }

  StepPlan take() { return std::move(plan_); }

 private:
  bool has_pages(int num) const { return num <= num_free_pages_ && num <= num_free_entries_; }
  void take_pages(int num) {
    num_free_pages_ -= num;
    num_free_entries_ -= num;
  }

  void preempt_youngest() {
    --num_alive_;
    const SeqState& seq = state_.running[num_alive_];
    num_free_pages_ += seq.num_pages - seq.num_shared_pages;
    num_free_entries_ += seq.num_pages;
    plan_.preempted.push_back(num_alive_);
  }

  // The chunk of at most `num_tokens` that finds room for its logits, which are taken off.
  int64_t fit_logit_rows(const SeqState& seq, int64_t num_tokens) {
    const int64_t begin = seq.num_computed;
    const auto wanted_in = [&](int64_t end) {
      const int64_t scored = std::min(end, seq.logits_to) - std::max(begin, seq.logits_from);
      return std::max<int64_t>(0, scored) + (end == seq.num_tokens ? 1 : 0);
    };
    const int64_t room = 1 + num_spare_logit_rows_;
    if (wanted_in(begin + num_tokens) > room) {
      num_tokens = std::max<int64_t>(0, seq.logits_from - begin) + room;
    }
    num_spare_logit_rows_ -= std::max<int64_t>(0, wanted_in(begin + num_tokens) - 1);
    return num_tokens;
  }

  // False when pages are short.
  bool admit(int waiting_idx, const GateAnswer& answer) {
    SeqState seq = state_.waiting[waiting_idx];
    seq.num_computed = answer.num_computed;
    MEDLEY_CHECK_LT(seq.num_computed, seq.num_tokens);
    num_free_pages_ -= answer.num_pages_unfree;
    num_free_entries_ -= answer.num_pages;
    const int needed = num_pages_for(seq.num_tokens, limits_.page_size) - answer.num_pages;
    if (!has_pages(needed + num_alive_)) return false;
    const int64_t num_tokens =
        fit_logit_rows(seq, std::min<int64_t>(seq.num_tokens - seq.num_computed, num_rows_left_));
    num_rows_left_ -= static_cast<int>(num_tokens);
    take_pages(needed);
    ++num_alive_;
    plan_.admitted.push_back({waiting_idx, num_tokens});
    const auto load = adapters_.try_emplace(seq.adapter, AdapterLoad{.since = kNever}).first;
    ++load->second.num_running;
    return true;
  }

  void count_adapters() {
    for (const auto& [adapter, since] : state_.resident) adapters_[adapter].since = since;
    for (const SeqState& seq : state_.running) ++adapters_[seq.adapter].num_running;
  }

  struct Closing {
    int64_t adapter = 0;     // runs dry
    int64_t last_since = 0;  // who has waited since then or longer may still enter for it
  };

  std::optional<Closing> closing_adapter() const {
    if (limits_.max_adapters == 0) return std::nullopt;
    int num_resident = 0;
    Closing closing;
    int64_t oldest_since = kNever;
    for (const auto& [adapter, load] : adapters_) {
      if (adapter == kBaseModel) continue;
      ++num_resident;
      if (load.since >= oldest_since) continue;
      oldest_since = load.since;
      closing.adapter = adapter;
    }
    if (num_resident < limits_.max_adapters || oldest_since == kNever) return std::nullopt;
    closing.last_since = kNever;
    for (const SeqState& seq : state_.waiting) {
      if (seq.adapter == kBaseModel || adapters_.contains(seq.adapter)) continue;
      closing.last_since = std::min(closing.last_since, seq.waiting_since);
    }
    if (closing.last_since == kNever) return std::nullopt;
    if (state_.num_admissions - oldest_since >= limits_.max_num_seqs) closing.last_since = -1;
    return closing;
  }

  std::optional<int> next_candidate(const std::vector<bool>& passed_over) const {
    const std::optional<Closing> closing = closing_adapter();
    std::optional<int> best;
    std::tuple<bool, int, int64_t, int64_t> best_key;
    for (int i = 0; i < static_cast<int>(state_.waiting.size()); ++i) {
      const SeqState& seq = state_.waiting[i];
      if (passed_over[i] || absent_adapters_.contains(seq.adapter)) continue;
      if (closing && seq.adapter == closing->adapter && !seq.preempted &&
          seq.waiting_since > closing->last_since) {
        continue;
      }
      const auto load = adapters_.find(seq.adapter);
      const int num_running = load == adapters_.end() ? 0 : load->second.num_running;
      const std::tuple key(!seq.preempted, seq.preempted ? 0 : num_running, seq.waiting_since,
                           seq.arrival);
      if (!best || key < best_key) {
        best = i;
        best_key = key;
      }
    }
    return best;
  }

  const SchedulerLimits& limits_;
  const SchedulerState& state_;
  StepPlan plan_;
  int num_rows_left_;
  int64_t num_spare_logit_rows_;  // beyond one per sequence
  int num_free_pages_;
  int64_t num_free_entries_;  // of page tables
  int num_alive_;             // running sequences that stay, then with those admitted
  std::unordered_map<int64_t, AdapterLoad> adapters_;  // resident ones
  std::unordered_set<int64_t> absent_adapters_;        // found not to be on the device yet
};

}  // namespace

StepPlan plan_step(const SchedulerLimits& limits, const SchedulerState& state,
                   const AdmissionGate& gate) {
  Planner planner(limits, state);
  if (!planner.plan_decodes()) {
    StepPlan drain;
    drain.must_drain = true;
    return drain;
  }
  planner.plan_running_prefills();
  planner.plan_admissions(gate);
  return planner.take();
}

}  // namespace medley
