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

PagePool::PagePool(int num_pages) : slots_(num_pages) {
  free_.reserve(num_pages);
  for (int32_t id = num_pages - 1; id >= 0; --id) {
    free_.push_back(id);
    slots_[id].place = not_cached_.insert(not_cached_.end(), id);
  }
}

PagePool::~PagePool() { MEDLEY_CHECK_EQ(num_held(), 0); }

std::optional<Page> PagePool::allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t id = free_.back();
  free_.pop_back();
  slots_[id].num_holders = 1;
  return Page(this, id);
}

void PagePool::keep(int32_t id) {
  MEDLEY_CHECK(is_held(id) && !slots_[id].is_kept, fmt::format("page {} can't be kept", id));
  slots_[id].is_kept = true;
}

Page PagePool::share(int32_t id) {
  Slot& slot = slots_[id];
  MEDLEY_CHECK(slot.num_holders > 0 || slot.is_kept, fmt::format("page {} is free", id));
  if (slot.num_holders++ == 0) not_cached_.splice(not_cached_.end(), cached_, slot.place);
  return Page(this, id);
}

void PagePool::forget(int32_t id) {
  Slot& slot = slots_[id];
  MEDLEY_CHECK(slot.is_kept, fmt::format("page {} is not kept", id));
  slot.is_kept = false;
  if (slot.num_holders > 0) return;
  not_cached_.splice(not_cached_.end(), cached_, slot.place);
  free_.push_back(id);
}

std::optional<int32_t> PagePool::oldest_cached() const {
  if (cached_.empty()) return std::nullopt;
  return cached_.front();
}

void PagePool::release(int32_t id) {
  Slot& slot = slots_[id];
  MEDLEY_CHECK_GT(slot.num_holders, 0);
  if (--slot.num_holders > 0) return;
  if (slot.is_kept) {
    cached_.splice(cached_.end(), not_cached_, slot.place);
  } else {
    free_.push_back(id);
  }
}

}  // namespace medley
