#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace medley {

class PagePool;

// One page of the KV cache, held until destroyed. Movable; must not outlive its pool.
class Page {
 public:
  Page(Page&& other) noexcept;
  Page& operator=(Page&& other) noexcept;
  ~Page();
  int32_t id() const { return id_; }

 private:
  friend class PagePool;
  Page(PagePool* pool, int32_t id) : pool_(pool), id_(id) {}

  PagePool* pool_;
  int32_t id_;
};

// The page ids 0 .. num_pages - 1, each either free or held by exactly one Page: free + held =
// total at any time. Numbers only; the memory belongs to the backend. Not thread-safe.
class PagePool {
 public:
  explicit PagePool(int num_pages);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  std::optional<Page> allocate();  // nothing when none is free

  int num_pages() const { return static_cast<int>(is_held_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_held() const { return num_pages() - num_free(); }

 private:
  friend class Page;
  void release(int32_t id);

  std::vector<int32_t> free_;  // a stack: the page freed last is the warmest
  std::vector<bool> is_held_;
};

}  // namespace medley
