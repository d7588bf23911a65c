#pragma once

#include <cuda_bf16.h>

#include "backend/backend.h"
#include "cuda/memory.h"

namespace medley::cuda {

// One allocation of bfloat16: (layer, keys or values, page, kv head, token in page, head_dim),
// which is FlashInfer's HND layout: what one head reads of a page is contiguous.
class CudaKvCache : public KvCache {
 public:
  // kUnsupported for a type other than bfloat16, kInvalidArgument for a size below 1, kOverloaded
  // with both numbers when memory is short.
  static Result<std::unique_ptr<KvCache>> make(const KvCacheDesc& desc);

  const KvCacheDesc& desc() const override { return desc_; }
  __nv_bfloat16* keys(int layer) { return part(2 * layer); }
  __nv_bfloat16* values(int layer) { return part(2 * layer + 1); }
  const __nv_bfloat16* keys(int layer) const { return part(2 * layer); }
  const __nv_bfloat16* values(int layer) const { return part(2 * layer + 1); }

 private:
  CudaKvCache(const KvCacheDesc& desc, DeviceBuffer memory);
  size_t part_elements() const;
  __nv_bfloat16* part(int idx) {
    return memory_.as<__nv_bfloat16>() + static_cast<size_t>(idx) * part_elements();
  }
  const __nv_bfloat16* part(int idx) const {
    return memory_.as<__nv_bfloat16>() + static_cast<size_t>(idx) * part_elements();
  }

  KvCacheDesc desc_;
  DeviceBuffer memory_;
};

}  // namespace medley::cuda
