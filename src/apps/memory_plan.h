#pragma once

#include <cstdint>
#include <optional>

#include "apps/load_model.h"
#include "backend/backend.h"
#include "base/error.h"
#include "engine/kv_plan.h"
#include "spec/model_spec.h"

namespace medley::apps {

// What recorded graphs and the driver take of a device after memory was planned.
inline constexpr int64_t kDeviceReserveBytes = int64_t{512} << 20;

// What the weights and the buffers of a step leave: for keys and values, and for adapters.
struct MemoryPlan {
  int num_pages = 0;
  int64_t kv_bytes = 0;
  int64_t adapter_bytes = 0;       // on a device; 0 on the CPU, where only the host's is a limit
  int64_t adapter_host_bytes = 0;  // 0: no limit
};

struct MemoryDesc {
  std::optional<DeviceMemory> device;  // with weights and buffers in place; nothing for the CPU
  int64_t host_bytes = 0;              // of the whole host
  bool has_adapters = false;
};

// Keys and values get --kv-cache-memory-bytes, else all that is left, half of it where adapters are
// served; never more than max_num_seqs sequences of max_model_len can fill. Adapters on the device
// stay in host memory too, so they get no more than --adapter-host-memory-bytes. kOverloaded when
// nothing is left, kInvalidArgument when not one sequence fits.
Result<MemoryPlan> plan_memory(const ModelFlags& flags, const ModelSpec& spec,
                               const MemoryDesc& memory, KvPlanDesc kv);

}  // namespace medley::apps
