#include "cuda/range_allocator.h"

#include <iterator>

#include "base/check.h"

namespace medley::cuda {

void RangeAllocator::add_free(size_t offset, size_t num_bytes) {
  const auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + num_bytes == next->first) {
    num_bytes += next->second;
    remove_free(next);
  }
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      num_bytes += before->second;
      remove_free(before);
    }
  }
  free_.emplace(offset, num_bytes);
  free_by_size_.emplace(num_bytes, offset);
}

void RangeAllocator::remove_free(std::map<size_t, size_t>::iterator range) {
  free_by_size_.erase({range->second, range->first});
  free_.erase(range);
}

void RangeAllocator::grow(size_t num_bytes) {
  num_bytes = num_bytes / kAlignment * kAlignment;
  if (num_bytes == 0) return;
  add_free(capacity_, num_bytes);
  capacity_ += num_bytes;
}

std::optional<size_t> RangeAllocator::allocate(size_t num_bytes) {
  MEDLEY_CHECK_GT(num_bytes, size_t{0});
  const size_t wanted = rounded(num_bytes);
  const auto best = free_by_size_.lower_bound({wanted, 0});
  if (best == free_by_size_.end()) return std::nullopt;
  const auto [size, offset] = *best;
  remove_free(free_.find(offset));
  if (size > wanted) add_free(offset + wanted, size - wanted);
  sizes_.emplace(offset, wanted);
  used_ += wanted;
  return offset;
}

void RangeAllocator::free(size_t offset) {
  const auto found = sizes_.find(offset);
  MEDLEY_CHECK(found != sizes_.end(), "freed what was not handed out");
  used_ -= found->second;
  add_free(offset, found->second);
  sizes_.erase(found);
}

}  // namespace medley::cuda
