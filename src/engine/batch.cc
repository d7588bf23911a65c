#include "engine/batch.h"

#include "base/check.h"
#include "kv/page_table.h"

namespace medley {

Batch::Batch(const StepDesc& desc, int page_size) : desc_(desc), page_size_(page_size) {
  for (auto* v : {&token_ids_, &positions_, &seq_of_row_, &adapter_of_row_}) {
    v->reserve(desc.max_rows);
  }
  for (auto* v :
       {&q_indptr_, &kv_lens_, &page_indptr_, &sampler_slots_, &logit_rows_, &logit_seqs_}) {
    v->reserve(desc.max_seqs + 1);
  }
  page_ids_.reserve(desc.max_pages);
  clear();
}

void Batch::clear() {
  for (auto* v : {&token_ids_, &positions_, &seq_of_row_, &adapter_of_row_, &kv_lens_, &page_ids_,
                  &sampler_slots_, &logit_rows_, &logit_seqs_}) {
    v->clear();
  }
  q_indptr_.assign(1, 0);
  page_indptr_.assign(1, 0);
}

bool Batch::add(const Sequence& seq, int64_t num_tokens) {
  const int32_t seq_idx = static_cast<int32_t>(kv_lens_.size());
  const int64_t end = seq.num_computed + num_tokens;
  MEDLEY_CHECK_LE(end, seq.num_tokens());
  for (int64_t position = seq.num_computed; position < end; ++position) {
    const bool is_known = position < static_cast<int64_t>(seq.tokens.size());
    token_ids_.push_back(is_known ? seq.tokens[position] : kTokenFromSampler);
    positions_.push_back(static_cast<int32_t>(position));
    seq_of_row_.push_back(seq_idx);
    adapter_of_row_.push_back(seq.pin->slot());
  }
  q_indptr_.push_back(num_rows());
  kv_lens_.push_back(static_cast<int32_t>(end));
  sampler_slots_.push_back(*seq.slot);

  const int num_pages = num_pages_for(end, page_size_);
  MEDLEY_CHECK_LE(num_pages, seq.pages.num_pages());
  for (int i = 0; i < num_pages; ++i) page_ids_.push_back(seq.pages[i]);
  page_indptr_.push_back(static_cast<int32_t>(page_ids_.size()));

  MEDLEY_CHECK_LE(num_rows(), desc_.max_rows);
  MEDLEY_CHECK_LE(static_cast<int>(kv_lens_.size()), desc_.max_seqs);
  MEDLEY_CHECK_LE(static_cast<int>(page_ids_.size()), desc_.max_pages);
  if (end < seq.num_tokens()) return false;
  logit_rows_.push_back(num_rows() - 1);
  logit_seqs_.push_back(seq_idx);
  return true;
}

StepInputs Batch::inputs() const {
  return {.token_ids = token_ids_,
          .positions = positions_,
          .seq_of_row = seq_of_row_,
          .adapter_of_row = adapter_of_row_,
          .q_indptr = q_indptr_,
          .kv_lens = kv_lens_,
          .page_indptr = page_indptr_,
          .page_ids = page_ids_,
          .sampler_slots = sampler_slots_,
          .logit_rows = logit_rows_,
          .logit_seqs = logit_seqs_};
}

}  // namespace medley
