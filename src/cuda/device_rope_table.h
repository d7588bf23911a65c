#pragma once

#include <memory>
#include <vector>

#include "base/error.h"
#include "cuda/memory.h"
#include "spec/rope_table.h"

namespace medley::cuda {

// A RopeTable in device memory.
struct DeviceRopeTable {
  std::shared_ptr<const RopeTable> host;
  DeviceBuffer cos, sin;  // (max_position, rotary_dim / 2) float32
};

// Tables by spec and length, so that layers share them.
class DeviceRopeTables {
 public:
  // kOverloaded when memory is short.
  Result<std::shared_ptr<const DeviceRopeTable>> get(const RopeSpec& spec, int64_t max_position);

 private:
  RopeTables host_;
  std::vector<std::shared_ptr<const DeviceRopeTable>> made_;
};

}  // namespace medley::cuda
