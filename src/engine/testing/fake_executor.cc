#include "engine/testing/fake_executor.h"

#include <algorithm>

#include "base/check.h"

namespace medley::testing {
namespace {

std::vector<int32_t> copy(std::span<const int32_t> s) { return {s.begin(), s.end()}; }

}  // namespace

FakeExecutor::FakeExecutor(const ExecutorDesc& desc, const FakeAdapterStore* adapters)
    : desc_(desc),
      adapters_(adapters),
      slots_(desc.step.max_seqs),
      device_slots_(desc.step.max_seqs),
      cache_(static_cast<size_t>(desc.num_pages) * desc.page_size),
      outputs_{SampleOutput(desc.step.max_seqs), SampleOutput(desc.step.max_seqs)} {}

std::set<int32_t> FakeExecutor::pages_in_flight() const {
  std::set<int32_t> pages;
  for (const Launched& step : in_flight_) pages.insert(step.page_ids.begin(), step.page_ids.end());
  return pages;
}

Result<StepTicket> FakeExecutor::launch(const StepInputs& in, std::span<const SlotUpdate> updates) {
  MEDLEY_CHECK_LT(in_flight_.size(), size_t{kMaxStepsInFlight});
  if (failing_launch_ == num_launched_) return internal_error("device fault at launch");
  trace_ += "L" + std::to_string(num_launched_) + " ";
  max_rows_seen_ = std::max(max_rows_seen_, in.num_rows());
  for (const SlotUpdate& u : updates) slots_.at(u.slot) = {.owner = ++num_owners_};
  Launched step = {.ticket = num_launched_,
                   .token_ids = copy(in.token_ids),
                   .positions = copy(in.positions),
                   .seq_of_row = copy(in.seq_of_row),
                   .adapter_of_row = copy(in.adapter_of_row),
                   .q_indptr = copy(in.q_indptr),
                   .kv_lens = copy(in.kv_lens),
                   .page_indptr = copy(in.page_indptr),
                   .page_ids = copy(in.page_ids),
                   .sampler_slots = copy(in.sampler_slots),
                   .logit_rows = copy(in.logit_rows),
                   .logit_seqs = copy(in.logit_seqs),
                   .logit_targets = copy(in.logit_targets)};
  for (const auto& [slot, params] : updates) {
    DeviceSlot device_slot{.params = params,
                           .prompt_ids = copy(params.prompt_ids),
                           .edits = {params.edits.begin(), params.edits.end()},
                           .num_outputs = static_cast<int64_t>(params.output_ids.size())};
    device_slot.params.prompt_ids = device_slot.params.output_ids = {};
    device_slot.params.edits = {};
    MEDLEY_CHECK(step.updates.emplace(slot, std::move(device_slot)).second, "a slot set twice");
  }
  check(in, step);
  in_flight_.push_back(std::move(step));
  return num_launched_++;
}

void FakeExecutor::check(const StepInputs& in, Launched& step) {
  const size_t num_rows = in.token_ids.size();
  const size_t num_seqs = in.kv_lens.size();
  MEDLEY_CHECK_GT(num_rows, size_t{0});
  MEDLEY_CHECK_LE(in.num_rows(), desc_.step.max_rows);
  MEDLEY_CHECK_LE(in.num_seqs(), desc_.step.max_seqs);
  MEDLEY_CHECK_LE(static_cast<int>(in.page_ids.size()), desc_.step.max_pages);
  MEDLEY_CHECK_EQ(in.positions.size(), num_rows);
  MEDLEY_CHECK_EQ(in.seq_of_row.size(), num_rows);
  MEDLEY_CHECK_EQ(in.adapter_of_row.size(), num_rows);
  MEDLEY_CHECK_EQ(in.q_indptr.size(), num_seqs + 1);
  MEDLEY_CHECK_EQ(in.page_indptr.size(), num_seqs + 1);
  MEDLEY_CHECK_EQ(in.sampler_slots.size(), num_seqs);
  MEDLEY_CHECK_EQ(in.logit_rows.size(), in.logit_seqs.size());
  MEDLEY_CHECK_EQ(in.q_indptr.back(), in.num_rows());
  MEDLEY_CHECK_EQ(in.page_indptr.back(), static_cast<int>(in.page_ids.size()));

  std::set<int32_t> slots_seen;
  for (size_t s = 0; s < num_seqs; ++s) {
    const int32_t begin = in.q_indptr[s], end = in.q_indptr[s + 1];
    Slot& slot = slots_.at(in.sampler_slots[s]);
    MEDLEY_CHECK(slots_seen.insert(in.sampler_slots[s]).second, "two sequences in one slot");
    MEDLEY_CHECK_LT(begin, end);
    const int64_t num_before = in.positions[begin];
    if (!slot.next_position) {
      MEDLEY_CHECK_EQ(num_before % desc_.page_size, 0);
      slot.next_position = num_before;
    }
    for (int32_t r = begin; r < end; ++r) {
      MEDLEY_CHECK_EQ(in.seq_of_row[r], static_cast<int32_t>(s));
      MEDLEY_CHECK_EQ(in.positions[r], *slot.next_position);
      MEDLEY_CHECK_EQ(in.adapter_of_row[r], in.adapter_of_row[begin]);
      ++*slot.next_position;
      if (in.token_ids[r] != kTokenFromSampler) continue;
      MEDLEY_CHECK(slot.has_sampled && end - begin == 1, "no sampled token to decode");
    }
    MEDLEY_CHECK_EQ(in.kv_lens[s], *slot.next_position);

    const int32_t num_pages = in.page_indptr[s + 1] - in.page_indptr[s];
    MEDLEY_CHECK_EQ(num_pages, (in.kv_lens[s] + desc_.page_size - 1) / desc_.page_size);
    const std::vector<int32_t> pages = copy(in.page_ids.subspan(in.page_indptr[s], num_pages));
    MEDLEY_CHECK(std::equal(slot.pages.begin(), slot.pages.end(), pages.begin()),
                 "a sequence's pages changed");
    slot.pages = pages;
    check_pages(pages, num_before, slot.owner, step);
  }
  MEDLEY_CHECK_EQ(in.logit_targets.size(), in.logit_rows.size());
  MEDLEY_CHECK_LE(in.num_logit_rows(), desc_.step.max_seqs);
  for (size_t i = 0; i < in.logit_rows.size(); ++i) {
    const int32_t row = in.logit_rows[i];
    MEDLEY_CHECK_EQ(in.seq_of_row[row], in.logit_seqs[i]);
    MEDLEY_CHECK(i == 0 || in.logit_rows[i - 1] < row, "rows out of order");
    if (in.logit_targets[i] != kSampleToken) continue;
    MEDLEY_CHECK_EQ(row, in.q_indptr[in.logit_seqs[i] + 1] - 1);
    slots_[in.sampler_slots[in.logit_seqs[i]]].has_sampled = true;
  }
}

// The pages from the one of position `num_before` on are written to.
void FakeExecutor::check_pages(std::span<const int32_t> pages, int64_t num_before, uint64_t owner,
                               Launched& step) const {
  MEDLEY_CHECK_EQ(std::set(pages.begin(), pages.end()).size(), pages.size());
  for (size_t i = 0; i < pages.size(); ++i) {
    const int32_t page = pages[i];
    MEDLEY_CHECK(page >= 0 && page < desc_.num_pages, "no such page");
    const bool is_written = static_cast<int64_t>(i) >= num_before / desc_.page_size;
    const auto is_others = [&](const Launched& launched) {
      const auto writer = launched.writer_of_page.find(page);
      if (writer != launched.writer_of_page.end() && writer->second != owner) return true;
      const auto users = launched.users_of_page.find(page);
      return is_written && users != launched.users_of_page.end() &&
             users->second != std::set{owner};
    };
    MEDLEY_CHECK(!is_others(step), "one page for two sequences, one of which writes to it");
    for (const Launched& other : in_flight_) {
      MEDLEY_CHECK(!is_others(other), "the page belongs to another sequence of a step in flight");
    }
    step.users_of_page[page].insert(owner);
    if (is_written) step.writer_of_page[page] = owner;
  }
}

FakeKey& FakeExecutor::at(const Launched& step, int32_t seq, int64_t position) {
  const int32_t page = step.page_ids[step.page_indptr[seq] + position / desc_.page_size];
  return cache_[static_cast<size_t>(page) * desc_.page_size + position % desc_.page_size];
}

int32_t FakeExecutor::sample(const Launched& step, int32_t seq) {
  DeviceSlot& slot = device_slots_[step.sampler_slots[seq]];
  std::vector<FakeKey> tokens;
  for (int64_t t = 0; t < step.kv_lens[seq]; ++t) tokens.push_back(at(step, seq, t));
  for (const FakeKey& key : tokens) {
    MEDLEY_CHECK(key.adapter_hash == tokens.back().adapter_hash, "another adapter's page");
  }
  MEDLEY_CHECK_EQ(slot.prompt_ids.size() + slot.num_outputs, tokens.size());
  for (size_t t = 0; t < slot.prompt_ids.size(); ++t) {
    MEDLEY_CHECK_EQ(slot.prompt_ids[t], tokens[t].token_id);
  }
  slot.last_token_id = fake_next_token(tokens,
                                       {.temperature = slot.params.temperature,
                                        .presence_penalty = slot.params.presence_penalty,
                                        .seed = slot.params.seed,
                                        .num_outputs = slot.num_outputs,
                                        .edits = slot.edits},
                                       desc_.vocab_size);
  ++slot.num_outputs;
  return slot.last_token_id;
}

void FakeExecutor::execute(const Launched& step, SampleOutput& out) {
  for (const auto& [idx, slot] : step.updates) device_slots_[idx] = slot;
  for (size_t r = 0; r < step.token_ids.size(); ++r) {
    const int32_t seq = step.seq_of_row[r];
    const int32_t adapter = step.adapter_of_row[r];
    const int32_t token_id = step.token_ids[r] == kTokenFromSampler
                                 ? device_slots_[step.sampler_slots[seq]].last_token_id
                                 : step.token_ids[r];
    at(step, seq, step.positions[r]) = {
        token_id,
        fake_adapter_hash(adapter == kNoAdapter ? "" : adapters_->content_of_slot(adapter))};
  }
  for (size_t i = 0; i < step.logit_rows.size(); ++i) {
    const int32_t target = step.logit_targets[i];
    const int32_t id = target == kSampleToken ? sample(step, step.logit_seqs[i]) : target;
    out.token_ids[i] = id;
    out.logprobs[i] = fake_logprob(id, step.positions[step.logit_rows[i]] + 1);
    out.ranks[i] = 1 + id % 5;
    for (int k = 0; k < kMaxTopLogprobs; ++k) {
      out.top_ids[i * kMaxTopLogprobs + k] = id + k;
      out.top_logprobs[i * kMaxTopLogprobs + k] = out.logprobs[i] - static_cast<float>(k);
    }
  }
}

Result<const SampleOutput*> FakeExecutor::wait(StepTicket ticket) {
  MEDLEY_CHECK(!in_flight_.empty(), "nothing launched");
  MEDLEY_CHECK_EQ(in_flight_.front().ticket, ticket);
  if (failing_wait_ == ticket) return internal_error("device fault in a step");
  trace_ += "W" + std::to_string(ticket) + " ";
  SampleOutput& out = outputs_[ticket % kMaxStepsInFlight];
  execute(in_flight_.front(), out);
  in_flight_.pop_front();
  return &out;
}

}  // namespace medley::testing
