#include "kv/page_table.h"

#include <utility>

namespace medley {

bool PageTable::grow(int64_t num_tokens, int page_size, PagePool& pool) {
  const int wanted = num_pages_for(num_tokens, page_size);
  if (wanted - num_pages() > pool.num_free()) return false;
  while (num_pages() < wanted) pages_.push_back(std::move(*pool.allocate()));
  return true;
}

}  // namespace medley
