#pragma once

#include <cstdint>
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
// A prefix cache will put its pages in front of those that grow() takes. Not thread-safe.
class PageTable {
 public:
  // Takes pages until `num_tokens` tokens fit. False, and nothing taken, when too few are free.
  [[nodiscard]] bool grow(int64_t num_tokens, int page_size, PagePool& pool);
  void clear() { pages_.clear(); }

  int num_pages() const { return static_cast<int>(pages_.size()); }
  int32_t operator[](int i) const { return pages_[i].id(); }

 private:
  std::vector<Page> pages_;
};

}  // namespace medley
