#include "cuda/device_rope_table.h"

namespace medley::cuda {

Result<std::shared_ptr<const DeviceRopeTable>> DeviceRopeTables::get(const RopeSpec& spec,
                                                                     int64_t max_position) {
  const std::shared_ptr<const RopeTable> host = host_.get(spec, max_position);
  for (const auto& made : made_) {
    if (made->host == host) return made;
  }
  auto table = std::make_shared<DeviceRopeTable>();
  table->host = host;
  const size_t num_bytes = host->cos.size() * sizeof(float);
  MEDLEY_TRY_ASSIGN(table->cos, DeviceBuffer::allocate(num_bytes));
  MEDLEY_TRY_ASSIGN(table->sin, DeviceBuffer::allocate(num_bytes));
  table->cos.copy_from_host(host->cos.data(), num_bytes);
  table->sin.copy_from_host(host->sin.data(), num_bytes);
  made_.push_back(table);
  return std::shared_ptr<const DeviceRopeTable>(table);
}

}  // namespace medley::cuda
