#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace medley::cuda {

// Hands out ranges of [0, capacity): the smallest free range that fits, the first of equals. Ranges
// that are given back join their free neighbours. Sizes are rounded up to kAlignment, and offsets
// are its multiples. Numbers only: it touches no memory. Not thread-safe.
//
//   |  used  |      free      |used|  free  |
//   0        a                b    c        capacity      free: a -> b - a, c -> capacity - c
class RangeAllocator {
 public:
  static constexpr size_t kAlignment = 256;

  static constexpr size_t rounded(size_t num_bytes) {
    return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  explicit RangeAllocator(size_t capacity = 0) { grow(capacity); }

  // Adds `num_bytes`, rounded down to kAlignment, at the end.
  void grow(size_t num_bytes);
  // The offset; nothing when no free range is large enough. `num_bytes` is at least 1.
  std::optional<size_t> allocate(size_t num_bytes);
  // `offset` came from allocate() and was not freed since.
  void free(size_t offset);

  size_t capacity() const { return capacity_; }
  size_t used() const { return used_; }  // rounded sizes of all ranges handed out
  size_t largest_free() const { return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first; }

 private:
  void add_free(size_t offset, size_t num_bytes);
  void remove_free(std::map<size_t, size_t>::iterator range);

  size_t capacity_ = 0;
  size_t used_ = 0;
  std::map<size_t, size_t> free_;                     // offset -> size; no two touch
  std::set<std::pair<size_t, size_t>> free_by_size_;  // (size, offset)
  std::map<size_t, size_t> sizes_;                    // of what was handed out, by offset
};

}  // namespace medley::cuda
