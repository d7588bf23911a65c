#include "kv/page_pool.h"

#include <utility>

#include "base/check.h"

namespace medley {

Page::Page(Page&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}

Page& Page::operator=(Page&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(id_, other.id_);
  return *this;
}

Page::~Page() {
  if (pool_ != nullptr) pool_->release(id_);
}

PagePool::PagePool(int num_pages) : is_held_(num_pages, false) {
  free_.reserve(num_pages);
  for (int32_t id = num_pages - 1; id >= 0; --id) free_.push_back(id);
}

PagePool::~PagePool() { MEDLEY_CHECK_EQ(num_held(), 0); }

std::optional<Page> PagePool::allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t id = free_.back();
  free_.pop_back();
  is_held_[id] = true;
  return Page(this, id);
}

void PagePool::release(int32_t id) {
  MEDLEY_CHECK(is_held_[id], fmt::format("page {} freed twice", id));
  is_held_[id] = false;
  free_.push_back(id);
}

}  // namespace medley
