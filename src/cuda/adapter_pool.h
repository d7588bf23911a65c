#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "cuda/memory.h"
#include "cuda/range_allocator.h"

namespace medley::cuda {

class AdapterPool;

// Pieces of an AdapterPool; given back by the destructor. Movable.
class PoolRanges {
 public:
  PoolRanges() = default;
  PoolRanges(PoolRanges&& other) noexcept;
  PoolRanges& operator=(PoolRanges&& other) noexcept;
  ~PoolRanges();

  uint8_t* data(size_t i) const { return pieces_[i]; }

 private:
  friend class AdapterPool;
  AdapterPool* pool_ = nullptr;
  std::vector<uint8_t*> pieces_;
  DeviceBuffer own_;  // where the pool has no limit
};

// Device memory of adapters: one arena, taken at start-up, so that loading neither allocates nor
// maps. Thread-safe.
class AdapterPool {
 public:
  // 0 bytes: no arena; every adapter is an allocation of its own, which stops the device. For tests
  // and benches.
  Result<void> make(size_t num_bytes);
  // One piece per size, or none at all: kOverloaded, naming what was wanted and what is free.
  Result<PoolRanges> allocate(std::span<const size_t> sizes);
  AdapterMemory memory() const;

 private:
  friend class PoolRanges;
  void free(const std::vector<uint8_t*>& pieces);

  DeviceBuffer arena_;
  mutable std::mutex mutex_;
  RangeAllocator ranges_;
};

}  // namespace medley::cuda
