#include "cuda/kv_cache.h"

#include <fmt/format.h>

#include <utility>

namespace medley::cuda {
namespace {

size_t elements_of_part(const KvCacheDesc& desc) {
  return static_cast<size_t>(desc.num_pages) * desc.page_size * desc.num_kv_heads * desc.head_dim;
}

Result<void> check_positive(const char* what, int value) {
  if (value > 0) return {};
  return invalid_argument(
      fmt::format("the key-value cache: {}: expected at least 1, found {}", what, value));
}

}  // namespace

CudaKvCache::CudaKvCache(const KvCacheDesc& desc, DeviceBuffer memory)
    : desc_(desc), memory_(std::move(memory)) {}

size_t CudaKvCache::part_elements() const { return elements_of_part(desc_); }

Result<std::unique_ptr<KvCache>> CudaKvCache::make(const KvCacheDesc& desc) {
  if (desc.dtype != DType::kBF16) {
    return unsupported(fmt::format("the key-value cache on CUDA: bfloat16 only, found {}",
                                   medley::to_string(desc.dtype)));
  }
  MEDLEY_TRY(check_positive("num_layers", desc.num_layers));
  MEDLEY_TRY(check_positive("num_pages", desc.num_pages));
  MEDLEY_TRY(check_positive("page_size", desc.page_size));
  MEDLEY_TRY(check_positive("num_kv_heads", desc.num_kv_heads));
  MEDLEY_TRY(check_positive("head_dim", desc.head_dim));
  const size_t num_bytes =
      size_t{2} * desc.num_layers * elements_of_part(desc) * sizeof(__nv_bfloat16);
  MEDLEY_TRY_ASSIGN(DeviceBuffer memory, DeviceBuffer::allocate(num_bytes));
  return std::unique_ptr<KvCache>(new CudaKvCache(desc, std::move(memory)));
}

}  // namespace medley::cuda
