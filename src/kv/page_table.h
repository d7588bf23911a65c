#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kv/page_pool.h"

namespace medley {

// Pages that hold `num_tokens` tokens.
inline int num_pages_for(int64_t num_tokens, int page_size) {
  return static_cast<int>((num_tokens + page_size - 1) / page_size);
}

// The pages of one sequence, in order of its tokens:
//
//   page_size 4   tokens  0 1 2 3 | 4 5 6 7 | 8 9 . .
//                 pages   [  17  ] [   3   ] [  42  ]      token t lives in page t / page_size
//
// They are let go from the last to the first, which the prefix cache relies on. Not thread-safe.
class PageTable {
 public:
  PageTable() = default;
  PageTable(PageTable&&) = default;
  PageTable& operator=(PageTable&& other) noexcept {
    pages_.swap(other.pages_);
    return *this;
  }
  ~PageTable() { clear(); }

  // Takes pages until `num_tokens` tokens fit. False, and nothing taken, when too few are free.
  [[nodiscard]] bool grow(int64_t num_tokens, int page_size, PagePool& pool);
  void push_back(Page page) { pages_.push_back(std::move(page)); }
  void replace(int i, Page page) { pages_[i] = std::move(page); }
  void clear() {
    while (!pages_.empty()) pages_.pop_back();
  }

  int num_pages() const { return static_cast<int>(pages_.size()); }
  int32_t operator[](int i) const { return pages_[i].id(); }

 private:
  std::vector<Page> pages_;
};

}  // namespace medley
