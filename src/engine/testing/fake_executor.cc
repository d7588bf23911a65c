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
                   .updates = {updates.begin(), updates.end()},
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
                   .logit_seqs = copy(in.logit_seqs)};
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
    for (int32_t r = begin; r < end; ++r) {
      MEDLEY_CHECK_EQ(in.seq_of_row[r], static_cast<int32_t>(s));
      MEDLEY_CHECK_EQ(in.positions[r], slot.next_position);
      MEDLEY_CHECK_EQ(in.adapter_of_row[r], in.adapter_of_row[begin]);
      ++slot.next_position;
      if (in.token_ids[r] != kTokenFromSampler) continue;
      MEDLEY_CHECK(slot.has_sampled && end - begin == 1, "no sampled token to decode");
    }
    MEDLEY_CHECK_EQ(in.kv_lens[s], slot.next_position);

    const int32_t num_pages = in.page_indptr[s + 1] - in.page_indptr[s];
    MEDLEY_CHECK_EQ(num_pages, (in.kv_lens[s] + desc_.page_size - 1) / desc_.page_size);
    const std::vector<int32_t> pages = copy(in.page_ids.subspan(in.page_indptr[s], num_pages));
    MEDLEY_CHECK(std::equal(slot.pages.begin(), slot.pages.end(), pages.begin()),
                 "a sequence's pages changed");
    slot.pages = pages;
    for (const int32_t page : pages) {
      MEDLEY_CHECK(page >= 0 && page < desc_.num_pages, "no such page");
      MEDLEY_CHECK(step.owner_of_page.emplace(page, slot.owner).second, "two owners in a step");
      for (const Launched& other : in_flight_) {
        const auto it = other.owner_of_page.find(page);
        MEDLEY_CHECK(it == other.owner_of_page.end() || it->second == slot.owner,
                     "the page belongs to another sequence of a step in flight");
      }
    }
  }
  for (size_t i = 0; i < in.logit_rows.size(); ++i) {
    MEDLEY_CHECK_EQ(in.logit_rows[i], in.q_indptr[in.logit_seqs[i] + 1] - 1);
    MEDLEY_CHECK(i == 0 || in.logit_seqs[i - 1] < in.logit_seqs[i], "sequences out of order");
    slots_[in.sampler_slots[in.logit_seqs[i]]].has_sampled = true;
  }
}

void FakeExecutor::execute(const Launched& step, SampleOutput& out) {
  for (const SlotUpdate& u : step.updates) device_slots_[u.slot] = {.params = u.params};
  const auto at = [&](int32_t seq, int64_t position) -> FakeKey& {
    const int32_t page = step.page_ids[step.page_indptr[seq] + position / desc_.page_size];
    return cache_[static_cast<size_t>(page) * desc_.page_size + position % desc_.page_size];
  };
  for (size_t r = 0; r < step.token_ids.size(); ++r) {
    const int32_t seq = step.seq_of_row[r];
    const int32_t adapter = step.adapter_of_row[r];
    const int32_t token_id = step.token_ids[r] == kTokenFromSampler
                                 ? device_slots_[step.sampler_slots[seq]].last_token_id
                                 : step.token_ids[r];
    at(seq, step.positions[r]) = {
        token_id, fake_adapter_hash(adapter == kNoAdapter ? "" : adapters_->name_in_slot(adapter))};
  }
  for (size_t i = 0; i < step.logit_rows.size(); ++i) {
    const int32_t seq = step.logit_seqs[i];
    DeviceSlot& slot = device_slots_[step.sampler_slots[seq]];
    std::vector<FakeKey> tokens;
    for (int64_t t = 0; t < step.kv_lens[seq]; ++t) tokens.push_back(at(seq, t));
    slot.last_token_id = fake_next_token(tokens, slot.params, desc_.vocab_size);
    out.token_ids[i] = slot.last_token_id;
    out.logprobs[i] = fake_logprob(slot.last_token_id, step.kv_lens[seq]);
    for (int k = 0; k < kMaxTopLogprobs; ++k) {
      out.top_ids[i * kMaxTopLogprobs + k] = slot.last_token_id + k;
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
