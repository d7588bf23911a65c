#pragma once

#include <cstdint>
#include <list>
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

// The page ids 0 .. num_pages - 1. At any time each is in one of three states, so that
// free + cached + held = total:
//
//             allocate              last Page dies
//     free ────────────> held ───────────────────────> free      not kept
//                         ^ │       last Page dies
//                   share │ └────────────────────────> cached    kept
//                         └──────────────────────────────┘ │ forget
//                                                           └──> free
//
// A held page may have several holders. Whoever keeps a page says that its content is worth
// something without a holder. Numbers only; the memory belongs to the backend. Not thread-safe.
class PagePool {
 public:
  explicit PagePool(int num_pages);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  std::optional<Page> allocate();  // nothing when none is free

  void keep(int32_t id);    // held and not kept
  Page share(int32_t id);   // held or cached
  void forget(int32_t id);  // kept; free at once if nobody holds it
  // The cached page that lost its last holder first; nothing when none is cached.
  std::optional<int32_t> oldest_cached() const;

  int num_pages() const { return static_cast<int>(slots_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_cached() const { return static_cast<int>(cached_.size()); }
  int num_held() const { return num_pages() - num_free() - num_cached(); }
  bool is_held(int32_t id) const { return slots_[id].num_holders > 0; }

 private:
  friend class Page;
  struct Slot {
    int num_holders = 0;
    bool is_kept = false;
    std::list<int32_t>::iterator place;  // in cached_ or not_cached_
  };
  void release(int32_t id);

  std::vector<Slot> slots_;
  std::vector<int32_t> free_;  // a stack: the page freed last is the warmest
  std::list<int32_t> cached_;  // by the time of their release, oldest first
  std::list<int32_t>
      not_cached_;  // the other ids' list nodes, so that moving one allocates nothing
};

}  // namespace medley
