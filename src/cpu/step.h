#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace medley::cpu {

// Rows that run one adapter: rows[begin, end) of RowGroups::order.
struct RowGroup {
  int slot = 0;
  int begin = 0;
  int end = 0;
};

// Rows grouped by adapter slot; rows of the base model are left out.
struct RowGroups {
  std::vector<int32_t> order;
  std::vector<RowGroup> groups;
};

class CpuStep : public Step {
 public:
  explicit CpuStep(const StepDesc& desc);

  void update(const StepInputs& inputs, Stream& stream) override;
  int num_rows() const override { return static_cast<int>(token_ids.size()); }
  int num_logit_rows() const override { return static_cast<int>(logit_rows.size()); }

  // As in StepInputs.
  std::vector<int32_t> token_ids, positions, seq_of_row, adapter_of_row, q_indptr, kv_lens,
      page_indptr, page_ids, sampler_slots, logit_rows, logit_seqs, logit_targets;
  RowGroups row_groups;    // over rows
  RowGroups logit_groups;  // over indices of logit_rows

 private:
  StepDesc desc_;
  std::vector<int32_t> logit_adapters_;
};

inline const CpuStep& cpu_step(const Step& step) { return static_cast<const CpuStep&>(step); }

}  // namespace medley::cpu
