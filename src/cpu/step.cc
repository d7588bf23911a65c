#include "cpu/step.h"

#include <algorithm>

#include "base/check.h"

namespace medley::cpu {
namespace {

void assign(std::vector<int32_t>& to, std::span<const int32_t> from, size_t capacity) {
  MEDLEY_CHECK_LE(from.size(), capacity);
  to.assign(from.begin(), from.end());
}

void group_by_adapter(std::span<const int32_t> adapters, RowGroups& out) {
  out.order.clear();
  out.groups.clear();
  for (int32_t i = 0; i < static_cast<int32_t>(adapters.size()); ++i) {
    if (adapters[i] != kNoAdapter) out.order.push_back(i);
  }
  std::sort(out.order.begin(), out.order.end(), [&](int32_t a, int32_t b) {
    return adapters[a] != adapters[b] ? adapters[a] < adapters[b] : a < b;
  });
  for (int i = 0; i < static_cast<int>(out.order.size()); ++i) {
    const int slot = adapters[out.order[i]];
    if (out.groups.empty() || out.groups.back().slot != slot) out.groups.push_back({slot, i, i});
    out.groups.back().end = i + 1;
  }
}

}  // namespace

CpuStep::CpuStep(const StepDesc& desc) : desc_(desc) {
  for (auto* rows : {&token_ids, &positions, &seq_of_row, &adapter_of_row, &row_groups.order}) {
    rows->reserve(desc.max_rows);
  }
  for (auto* seqs : {&q_indptr, &kv_lens, &page_indptr, &sampler_slots, &logit_rows, &logit_seqs,
                     &logit_targets, &logit_groups.order, &logit_adapters_}) {
    seqs->reserve(desc.max_seqs + 1);
  }
  page_ids.reserve(desc.max_pages);
  row_groups.groups.reserve(desc.max_rows);
  logit_groups.groups.reserve(desc.max_seqs);
}

void CpuStep::update(const StepInputs& inputs, Stream&) {
  const size_t rows = inputs.token_ids.size();
  const size_t seqs = inputs.kv_lens.size();
  MEDLEY_CHECK_LE(rows, static_cast<size_t>(desc_.max_rows));
  MEDLEY_CHECK_LE(seqs, static_cast<size_t>(desc_.max_seqs));
  for (auto per_row : {inputs.positions, inputs.seq_of_row, inputs.adapter_of_row}) {
    MEDLEY_CHECK_EQ(per_row.size(), rows);
  }
  for (auto indptr : {inputs.q_indptr, inputs.page_indptr}) {
    MEDLEY_CHECK_EQ(indptr.size(), seqs + 1);
  }
  MEDLEY_CHECK_EQ(inputs.sampler_slots.size(), seqs);
  MEDLEY_CHECK_EQ(inputs.logit_rows.size(), inputs.logit_seqs.size());
  assign(token_ids, inputs.token_ids, desc_.max_rows);
  assign(positions, inputs.positions, desc_.max_rows);
  assign(seq_of_row, inputs.seq_of_row, desc_.max_rows);
  assign(adapter_of_row, inputs.adapter_of_row, desc_.max_rows);
  assign(q_indptr, inputs.q_indptr, desc_.max_seqs + 1);
  assign(kv_lens, inputs.kv_lens, desc_.max_seqs);
  assign(page_indptr, inputs.page_indptr, desc_.max_seqs + 1);
  assign(page_ids, inputs.page_ids, desc_.max_pages);
  assign(sampler_slots, inputs.sampler_slots, desc_.max_seqs);
  assign(logit_rows, inputs.logit_rows, desc_.max_seqs);
  assign(logit_seqs, inputs.logit_seqs, desc_.max_seqs);
  if (inputs.logit_targets.empty()) {
    logit_targets.assign(logit_rows.size(), kSampleToken);
  } else {
    MEDLEY_CHECK_EQ(inputs.logit_targets.size(), logit_rows.size());
    assign(logit_targets, inputs.logit_targets, desc_.max_seqs);
  }

  group_by_adapter(adapter_of_row, row_groups);
  logit_adapters_.clear();
  for (const int32_t row : logit_rows) logit_adapters_.push_back(adapter_of_row[row]);
  group_by_adapter(logit_adapters_, logit_groups);
}

}  // namespace medley::cpu
