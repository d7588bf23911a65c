#pragma once

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/testing/fake_adapter_store.h"
#include "engine/testing/fake_model.h"

namespace medley::testing {

// A device that runs the fake model over a real paged cache, as late as it may: a step is executed
// when it is waited for, so that pages, slots and adapters given away too early show in the output.
// Every launch is checked: budgets, grouping, contiguous positions, page tables that only grow, no
// page written by one sequence and used by another in this step or one in flight. What a sequence
// has not computed itself must be full pages of its own tokens under its own adapter. A violation
// aborts.
class FakeExecutor final : public Executor {
 public:
  FakeExecutor(const ExecutorDesc& desc, const FakeAdapterStore* adapters);

  const ExecutorDesc& desc() const override { return desc_; }
  Stream& stream() override { return stream_; }
  Result<StepTicket> launch(const StepInputs& inputs, std::span<const SlotUpdate> updates) override;
  Result<const SampleOutput*> wait(StepTicket ticket) override;

  void fail_launch(StepTicket ticket) { failing_launch_ = ticket; }
  void fail_wait(StepTicket ticket) { failing_wait_ = ticket; }

  const std::string& trace() const { return trace_; }  // "L0 L1 W0 L2 W1 "
  int max_rows_seen() const { return max_rows_seen_; }
  std::set<int32_t> pages_in_flight() const;

 private:
  struct NoStream final : Stream {
    void synchronize() override {}
  };
  struct Slot {  // in order of launch
    uint64_t owner = 0;
    std::optional<int64_t> next_position;
    std::vector<int32_t> pages;
    bool has_sampled = false;
  };
  struct DeviceSlot {  // in order of execution
    SamplerParams params;
    std::vector<int32_t> prompt_ids;
    std::vector<LogitEdit> edits;
    int64_t num_outputs = 0;
    int32_t last_token_id = -1;
  };
  struct Launched {
    StepTicket ticket = 0;
    std::map<int, DeviceSlot> updates;
    std::vector<int32_t> token_ids, positions, seq_of_row, adapter_of_row, q_indptr, kv_lens;
    std::vector<int32_t> page_indptr, page_ids, sampler_slots, logit_rows, logit_seqs,
        logit_targets;
    std::map<int32_t, std::set<uint64_t>> users_of_page;  // owners of slots
    std::map<int32_t, uint64_t> writer_of_page;
  };

  void check(const StepInputs& inputs, Launched& step);
  void check_pages(std::span<const int32_t> pages, int64_t num_before, uint64_t owner,
                   Launched& step) const;
  FakeKey& at(const Launched& step, int32_t seq, int64_t position);
  int32_t sample(const Launched& step, int32_t seq);
  void execute(const Launched& step, SampleOutput& out);

  const ExecutorDesc desc_;
  const FakeAdapterStore* adapters_;
  NoStream stream_;
  std::vector<Slot> slots_;
  std::vector<DeviceSlot> device_slots_;
  std::vector<FakeKey> cache_;
  std::deque<Launched> in_flight_;
  std::array<SampleOutput, kMaxStepsInFlight> outputs_;
  StepTicket num_launched_ = 0;
  uint64_t num_owners_ = 0;
  std::optional<StepTicket> failing_launch_, failing_wait_;
  std::string trace_;
  int max_rows_seen_ = 0;
};

}  // namespace medley::testing
