#include "cuda/adapter_pool.h"

#include <fmt/format.h>

#include <utility>

namespace medley::cuda {

PoolRanges::PoolRanges(PoolRanges&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      pieces_(std::move(other.pieces_)),
      own_(std::move(other.own_)) {}

PoolRanges& PoolRanges::operator=(PoolRanges&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(pieces_, other.pieces_);
  std::swap(own_, other.own_);
  return *this;
}

PoolRanges::~PoolRanges() {
  if (pool_ != nullptr) pool_->free(pieces_);
}

Result<void> AdapterPool::make(size_t num_bytes) {
  std::lock_guard lock(mutex_);
  MEDLEY_CHECK_EQ(ranges_.used(), size_t{0});
  ranges_ = RangeAllocator(num_bytes);
  arena_ = DeviceBuffer();
  MEDLEY_TRY_ASSIGN(arena_, DeviceBuffer::allocate(num_bytes));
  return {};
}

Result<PoolRanges> AdapterPool::allocate(std::span<const size_t> sizes) {
  PoolRanges out;
  size_t wanted = 0;
  for (const size_t size : sizes) wanted += RangeAllocator::rounded(size);
  std::unique_lock lock(mutex_);
  if (ranges_.capacity() == 0) {
    lock.unlock();
    MEDLEY_TRY_ASSIGN(out.own_, DeviceBuffer::allocate(wanted));
    size_t offset = 0;
    for (const size_t size : sizes) {
      out.pieces_.push_back(out.own_.as<uint8_t>(offset));
      offset += RangeAllocator::rounded(size);
    }
    return out;
  }
  const size_t free_bytes = ranges_.capacity() - ranges_.used();
  const size_t largest = ranges_.largest_free();
  for (const size_t size : sizes) {
    const std::optional<size_t> offset = ranges_.allocate(size);
    if (!offset) {
      for (const uint8_t* piece : out.pieces_) ranges_.free(piece - arena_.as<uint8_t>());
      out.pieces_.clear();
      return Error{ErrorCode::kOverloaded,
                   fmt::format("device pool of adapters: wanted {} bytes, {} of {} are free (the "
                               "largest piece {})",
                               wanted, free_bytes, ranges_.capacity(), largest)};
    }
    out.pieces_.push_back(arena_.as<uint8_t>(*offset));
  }
  out.pool_ = this;
  return out;
}

void AdapterPool::free(const std::vector<uint8_t*>& pieces) {
  std::lock_guard lock(mutex_);
  for (const uint8_t* piece : pieces) ranges_.free(piece - arena_.as<uint8_t>());
}

AdapterMemory AdapterPool::memory() const {
  std::lock_guard lock(mutex_);
  return {.pool_bytes = ranges_.capacity(),
          .used_bytes = ranges_.used(),
          .largest_free_bytes = ranges_.largest_free()};
}

}  // namespace medley::cuda
