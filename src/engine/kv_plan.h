#pragma once

#include <cstdint>

#include "base/error.h"
#include "spec/model_spec.h"

namespace medley {

// Bytes of one page of keys and values, all layers.
int64_t kv_page_bytes(const ModelSpec& spec, DType dtype, int page_size);

struct KvPlanDesc {
  int max_num_seqs = 0;
  int64_t max_model_len = 0;
  int page_size = 16;
  DType dtype = DType::kBF16;
  int64_t budget_bytes = 0;  // 0 = as much as max_num_seqs sequences of max_model_len can fill
};

// Pages to allocate: what the budget holds, and never more than max_num_seqs sequences of
// max_model_len can fill. kInvalidArgument, with both sizes, when not even one such sequence fits.
Result<int> plan_kv_pages(const ModelSpec& spec, const KvPlanDesc& desc);

// Page-table entries of a step: sequences may share pages, on the average up to 16 of them each.
int plan_page_table(const KvPlanDesc& desc, int num_pages);

}  // namespace medley
