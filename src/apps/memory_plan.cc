#include "apps/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace medley::apps {
namespace {

constexpr int64_t kDefaultHostKvBytes = int64_t{4} << 30;

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

Result<MemoryPlan> plan_memory(const ModelFlags& flags, const ModelSpec& spec,
                               const MemoryDesc& memory, KvPlanDesc kv) {
  const int64_t page_bytes = kv_page_bytes(spec, kv.dtype, kv.page_size);
  if (!memory.device) {
    kv.budget_bytes =
        flags.kv_cache_memory_bytes > 0 ? flags.kv_cache_memory_bytes : kDefaultHostKvBytes;
    MEDLEY_TRY_ASSIGN(const int num_pages, plan_kv_pages(spec, kv));
    return MemoryPlan{.num_pages = num_pages,
                      .kv_bytes = num_pages * page_bytes,
                      .adapter_host_bytes = flags.adapter_host_memory_bytes};
  }
  const auto free = static_cast<int64_t>(memory.device->free_bytes);
  const auto kept = static_cast<int64_t>((1.0 - flags.gpu_memory_utilization) *
                                         static_cast<double>(memory.device->total_bytes));
  const int64_t left = free - kept - kDeviceReserveBytes;
  if (left <= 0) {
    return Error{
        ErrorCode::kOverloaded,
        fmt::format("the model leaves {:.0f} MiB of the GPU free; of these {:.0f} MiB are "
                    "kept free (--gpu-memory-utilization {}) and {:.0f} MiB are for graphs",
                    mib(free), mib(kept), flags.gpu_memory_utilization, mib(kDeviceReserveBytes)),
        "--gpu-memory-utilization"};
  }
  const int64_t wanted = flags.kv_cache_memory_bytes > 0 ? flags.kv_cache_memory_bytes
                         : memory.has_adapters           ? left / 2
                                                         : left;
  kv.budget_bytes = std::min(left, wanted);
  MEDLEY_TRY_ASSIGN(const int num_pages, plan_kv_pages(spec, kv));
  const int64_t kv_bytes = num_pages * page_bytes;
  const int64_t host_bytes = flags.adapter_host_memory_bytes > 0 ? flags.adapter_host_memory_bytes
                                                                 : memory.host_bytes / 4 * 3;
  return MemoryPlan{.num_pages = num_pages,
                    .kv_bytes = kv_bytes,
                    .adapter_bytes = std::min(left - kv_bytes, host_bytes),
                    .adapter_host_bytes = host_bytes};
}

}  // namespace medley::apps
