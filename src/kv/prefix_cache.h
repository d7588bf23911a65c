#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kv/page_pool.h"
#include "kv/page_table.h"

namespace medley {

// Full pages of the KV cache, found again by what was computed into them: the weights (a space: an
// adapter's content, or the base model) and all tokens up to the page's end. A radix tree whose
// edges are whole pages of tokens; all edges are in one hash table and are compared token by token.
//
//   page_size 2      ""  (base)             "9f3a" (an adapter)
//                     │                      │
//                   [1 2]→p7               [1 2]→p4          the same tokens, other keys and values
//                   ┌─┴──────┐               │
//               [3 4]→p1   [3 5]→p8        [3 4]→p0
//
// A sequence that holds a page of the tree holds all pages above it, and lets the lower ones go
// first (PageTable). So the pages that nobody holds, in order of their release, have children
// before parents, and the oldest is always a leaf: that is what evict() takes. A held page is never
// evicted. Not thread-safe.
class PrefixCache {
 public:
  struct Node;

  // How far down the tree a sequence's page table goes. Valid while the table holds those pages.
  struct Path {
    Node* last = nullptr;  // null above the first page
    int num_pages = 0;
    // A page of the same tokens was there before: from there on the table's pages are its own.
    bool has_parted = false;
  };

  PrefixCache(PagePool& pool, int page_size);
  ~PrefixCache();  // forgets all pages

  // Puts the longest prefix of `tokens` that is cached, at most `max_pages` pages, into `table`,
  // which is empty.
  Path match(const std::string& space, std::span<const int32_t> tokens, int max_pages,
             PageTable& table);

  // Adds the full pages of `tokens`, which `table` holds and which are computed, below `path`.
  // Where another sequence was faster, its page takes the place of the table's if `may_replace`;
  // else the rest stays out, for that would be held without what is above it.
  void insert(const std::string& space, std::span<const int32_t> tokens, PageTable& table,
              bool may_replace, Path& path);

  // Makes pages free until `num_free` are or none is cached.
  void evict(int num_free);

  int num_nodes() const { return static_cast<int>(nodes_.size()); }

 private:
  struct Edge {
    const Node* parent;
    std::span<const int32_t> tokens;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(const Edge& edge) const;
    size_t operator()(const std::unique_ptr<Node>& node) const;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const Edge& edge, const std::unique_ptr<Node>& node) const;
    bool operator()(const std::unique_ptr<Node>& node, const Edge& edge) const;
    bool operator()(const std::unique_ptr<Node>& a, const std::unique_ptr<Node>& b) const;
  };

  Node* child(const Node* parent, std::span<const int32_t> tokens) const;
  void remove(Node* node);

  PagePool& pool_;
  const int page_size_;
  std::unordered_map<std::string, std::unique_ptr<Node>> roots_;  // of spaces that have pages
  std::unordered_set<std::unique_ptr<Node>, Hash, Equal> nodes_;
  std::vector<Node*> node_of_page_;
};

}  // namespace medley
