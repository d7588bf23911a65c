#include "engine/testing/step_driver.h"

#include "base/check.h"

namespace medley::testing {

StepDriver::StepDriver(Executor& executor, int max_len)
    : executor_(executor),
      pages_per_seq_((max_len + executor.desc().page_size - 1) / executor.desc().page_size),
      seqs_(executor.desc().step.max_seqs) {
  const int num_pages = pages_per_seq_ * static_cast<int>(seqs_.size());
  MEDLEY_CHECK_LE(num_pages, executor.desc().num_pages);
  MEDLEY_CHECK_LE(num_pages, executor.desc().step.max_pages);
}

void StepDriver::restart(int seq, int32_t adapter) { seqs_[seq] = {.adapter = adapter}; }

void StepDriver::rewind(int seq, int len) {
  MEDLEY_CHECK_LE(len, seqs_[seq].len);
  seqs_[seq].len = len;
}

void StepDriver::add(const Piece& piece) {
  Seq& seq = seqs_[piece.seq];
  if (!seq.has_slot) {
    updates_.push_back({.slot = piece.seq, .params = {.temperature = 0.0f}});
    seq.has_slot = true;
  }
  const auto seq_idx = static_cast<int32_t>(kv_lens_.size());
  const std::vector<int32_t> sampled = {kTokenFromSampler};
  for (const int32_t token : piece.tokens.empty() ? sampled : piece.tokens) {
    token_ids_.push_back(token);
    positions_.push_back(seq.len++);
    seq_of_row_.push_back(seq_idx);
    adapter_of_row_.push_back(seq.adapter);
  }
  const int num_pages = (seq.len + executor_.desc().page_size - 1) / executor_.desc().page_size;
  MEDLEY_CHECK_LE(num_pages, pages_per_seq_);
  for (int i = 0; i < num_pages; ++i) page_ids_.push_back(piece.seq * pages_per_seq_ + i);
  const auto num_rows = static_cast<int32_t>(token_ids_.size());
  q_indptr_.push_back(num_rows);
  kv_lens_.push_back(seq.len);
  page_indptr_.push_back(static_cast<int32_t>(page_ids_.size()));
  slots_.push_back(piece.seq);
  logit_rows_.push_back(num_rows - 1);
  logit_seqs_.push_back(seq_idx);
}

StepTicket StepDriver::launch(std::span<const Piece> pieces) {
  for (auto* v : {&token_ids_, &positions_, &seq_of_row_, &adapter_of_row_, &kv_lens_, &page_ids_,
                  &slots_, &logit_rows_, &logit_seqs_}) {
    v->clear();
  }
  q_indptr_.assign(1, 0);
  page_indptr_.assign(1, 0);
  updates_.clear();
  for (const Piece& piece : pieces) add(piece);
  const Result<StepTicket> ticket = executor_.launch({.token_ids = token_ids_,
                                                      .positions = positions_,
                                                      .seq_of_row = seq_of_row_,
                                                      .adapter_of_row = adapter_of_row_,
                                                      .q_indptr = q_indptr_,
                                                      .kv_lens = kv_lens_,
                                                      .page_indptr = page_indptr_,
                                                      .page_ids = page_ids_,
                                                      .sampler_slots = slots_,
                                                      .logit_rows = logit_rows_,
                                                      .logit_seqs = logit_seqs_},
                                                     updates_);
  return ticket.value();
}

const SampleOutput& StepDriver::wait(StepTicket ticket) { return *executor_.wait(ticket).value(); }

}  // namespace medley::testing
