#include "engine/batch.h"

#include <algorithm>

#include "base/check.h"
#include "kv/page_table.h"

namespace medley {

Batch::Batch(const StepDesc& desc, int page_size) : desc_(desc), page_size_(page_size) {
  for (auto* v : {&token_ids_, &positions_, &seq_of_row_, &adapter_of_row_}) {
    v->reserve(desc.max_rows);
  }
  for (auto* v : {&q_indptr_, &kv_lens_, &page_indptr_, &sampler_slots_, &logit_rows_, &logit_seqs_,
                  &logit_targets_}) {
    v->reserve(desc.max_seqs + 1);
  }
  page_ids_.reserve(desc.max_pages);
  clear();
}

void Batch::clear() {
  for (auto* v : {&token_ids_, &positions_, &seq_of_row_, &adapter_of_row_, &kv_lens_, &page_ids_,
                  &sampler_slots_, &logit_rows_, &logit_seqs_, &logit_targets_}) {
    v->clear();
  }
  q_indptr_.assign(1, 0);
  page_indptr_.assign(1, 0);
}

Batch::Outputs Batch::add(const Sequence& seq, int64_t num_tokens) {
  const int32_t seq_idx = static_cast<int32_t>(kv_lens_.size());
  const int64_t begin = seq.num_computed;
  const int64_t end = begin + num_tokens;
  MEDLEY_CHECK_LE(end, seq.num_tokens());
  const int32_t first_row = num_rows();
  for (int64_t position = begin; position < end; ++position) {
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
  const auto add_logit_row = [&](int64_t position, int32_t target) {
    logit_rows_.push_back(first_row + static_cast<int32_t>(position - begin));
    logit_seqs_.push_back(seq_idx);
    logit_targets_.push_back(target);
  };
  Outputs outputs{.is_sampled = end == seq.num_tokens()};
  const int64_t scored_end = std::min(end, seq.scored_to());
  for (int64_t position = std::max(begin, seq.scored_from()); position < scored_end; ++position) {
    add_logit_row(position, seq.tokens[position + 1]);
    ++outputs.num_scored;
  }
  if (outputs.is_sampled) add_logit_row(end - 1, kSampleToken);
  MEDLEY_CHECK_LE(static_cast<int>(logit_rows_.size()), desc_.max_seqs);
  return outputs;
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
          .logit_seqs = logit_seqs_,
          .logit_targets = logit_targets_};
}

}  // namespace medley
