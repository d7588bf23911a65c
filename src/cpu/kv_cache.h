#pragma once

#include "backend/backend.h"
#include "cpu/memory.h"
#include "cpu/step.h"

namespace medley::cpu {

// Keys, then values, each [layer][page][token in page][kv head][head_dim].
class CpuKvCache : public KvCache {
 public:
  explicit CpuKvCache(const KvCacheDesc& desc)
      : desc_(desc),
        keys_(num_elements() * size_of(desc.dtype)),
        values_(num_elements() * size_of(desc.dtype)) {}

  const KvCacheDesc& desc() const override { return desc_; }
  void* keys() { return keys_.data(); }
  void* values() { return values_.data(); }
  const void* keys() const { return keys_.data(); }
  const void* values() const { return values_.data(); }

  // Index of the first element of (layer, sequence's token, kv head 0).
  int64_t token_offset(int layer, const CpuStep& step, int seq, int token) const {
    const int page = step.page_ids[step.page_indptr[seq] + token / desc_.page_size];
    const int64_t token_idx =
        (static_cast<int64_t>(layer) * desc_.num_pages + page) * desc_.page_size +
        token % desc_.page_size;
    return token_idx * desc_.num_kv_heads * desc_.head_dim;
  }

 private:
  size_t num_elements() const {
    return static_cast<size_t>(desc_.num_layers) * desc_.num_pages * desc_.page_size *
           desc_.num_kv_heads * desc_.head_dim;
  }

  KvCacheDesc desc_;
  AlignedBuffer keys_, values_;
};

}  // namespace medley::cpu
