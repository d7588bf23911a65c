#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "cuda/range_allocator.h"

namespace medley::cuda {

class PinnedArena;

// A piece of a PinnedArena; given back by the destructor. Movable.
class PinnedRange {
 public:
  PinnedRange() = default;
  PinnedRange(PinnedRange&& other) noexcept;
  PinnedRange& operator=(PinnedRange&& other) noexcept;
  ~PinnedRange();

  uint8_t* data() const;
  size_t num_bytes() const { return num_bytes_; }

 private:
  friend class PinnedArena;
  PinnedArena* arena_ = nullptr;
  size_t offset_ = 0;
  size_t num_bytes_ = 0;
};

// Page-locked host memory that is recycled: locking costs more than filling. One range of
// addresses, locked slab by slab, by a thread of its own before it is needed if wanted, and never
// returned to the system. Thread-safe; giving back never waits for memory that is being locked.
class PinnedArena {
 public:
  // A copy to the device must not cross a multiple of this, counted from begin().
  static constexpr size_t kSlabBytes = size_t{64} << 20;

  PinnedArena() = default;
  ~PinnedArena();
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  // Locks slabs until at least `num_bytes` are locked. kOverloaded when the host has no more, with
  // both numbers; so does allocate().
  Result<void> reserve(size_t num_bytes);
  // From now on keeps so much more locked than is used, while the host has it. The last call
  // counts.
  void stay_ahead(size_t num_bytes);
  // What it holds is whatever was there before.
  Result<PinnedRange> allocate(size_t num_bytes);

  const uint8_t* begin() const { return begin_; }
  size_t locked_bytes() const;
  size_t used_bytes() const;

 private:
  friend class PinnedRange;
  Result<void> grow(size_t num_bytes);  // under grow_mutex_
  void free(size_t offset);
  void run_ahead();

  std::mutex grow_mutex_;
  uint8_t* begin_ = nullptr;   // set once, by the first growth
  size_t reserved_bytes_ = 0;  // of addresses

  mutable std::mutex mutex_;
  RangeAllocator ranges_;

  size_t ahead_bytes_ = 0;
  bool is_stopping_ = false;
  std::condition_variable taken_;  // ranges_ or is_stopping_ changed
  std::thread ahead_;
};

}  // namespace medley::cuda
