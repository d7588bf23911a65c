#include "engine/kv_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kv/page_table.h"

namespace medley {

int64_t kv_page_bytes(const ModelSpec& spec, DType dtype, int page_size) {
  const int64_t values_per_token =
      int64_t{2} * spec.num_layers() * spec.attention.num_kv_heads * spec.attention.head_dim;
  return values_per_token * page_size * static_cast<int64_t>(size_of(dtype));
}

Result<int> plan_kv_pages(const ModelSpec& spec, const KvPlanDesc& desc) {
  const int64_t page_bytes = kv_page_bytes(spec, desc.dtype, desc.page_size);
  const int64_t pages_per_seq = num_pages_for(desc.max_model_len, desc.page_size);
  int64_t num_pages = std::min<int64_t>(pages_per_seq * desc.max_num_seqs,
                                        std::numeric_limits<int32_t>::max() / desc.page_size);
  if (desc.budget_bytes > 0) num_pages = std::min(num_pages, desc.budget_bytes / page_bytes);
  if (num_pages < pages_per_seq) {
    return invalid_argument(
        fmt::format("the KV cache holds {} bytes, but one request of max_model_len {} takes {}",
                    num_pages * page_bytes, desc.max_model_len, pages_per_seq * page_bytes),
        "kv_cache_memory");
  }
  return static_cast<int>(num_pages);
}

int plan_page_table(const KvPlanDesc& desc, int num_pages) {
  constexpr int64_t kMaxSharing = 16;
  const int64_t pages_per_seq = num_pages_for(desc.max_model_len, desc.page_size);
  return static_cast<int>(std::min({pages_per_seq * desc.max_num_seqs, kMaxSharing * num_pages,
                                    int64_t{std::numeric_limits<int32_t>::max()}}));
}

}  // namespace medley
