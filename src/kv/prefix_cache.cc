#include "kv/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace medley {

struct PrefixCache::Node {
  Node* parent = nullptr;  // null for a root
  std::vector<int32_t> tokens;
  int32_t page_id = -1;
  int num_children = 0;
  std::string space;  // of a root

  Edge edge() const { return {parent, tokens}; }
};

// FNV-1a over words, then a multiply-shift: ids differ in their low bits.
size_t PrefixCache::Hash::operator()(const Edge& edge) const {
  uint64_t h = 0xcbf29ce484222325u ^ reinterpret_cast<uintptr_t>(edge.parent);
  for (const int32_t token : edge.tokens) h = (h ^ static_cast<uint32_t>(token)) * 0x100000001b3u;
  h ^= h >> 32;
  h *= 0x9e3779b97f4a7c15u;
  return static_cast<size_t>(h ^ (h >> 29));
}

size_t PrefixCache::Hash::operator()(const std::unique_ptr<Node>& node) const {
  return (*this)(node->edge());
}

bool PrefixCache::Equal::operator()(const Edge& edge, const std::unique_ptr<Node>& node) const {
  return edge.parent == node->parent && std::ranges::equal(edge.tokens, node->tokens);
}

bool PrefixCache::Equal::operator()(const std::unique_ptr<Node>& node, const Edge& edge) const {
  return (*this)(edge, node);
}

bool PrefixCache::Equal::operator()(const std::unique_ptr<Node>& a,
                                    const std::unique_ptr<Node>& b) const {
  return (*this)(a->edge(), b);
}

PrefixCache::PrefixCache(PagePool& pool, int page_size)
    : pool_(pool), page_size_(page_size), node_of_page_(pool.num_pages(), nullptr) {}

PrefixCache::~PrefixCache() {
  for (const auto& node : nodes_) pool_.forget(node->page_id);
}

PrefixCache::Node* PrefixCache::child(const Node* parent, std::span<const int32_t> tokens) const {
  const auto it = nodes_.find(Edge{parent, tokens});
  return it == nodes_.end() ? nullptr : it->get();
}

PrefixCache::Path PrefixCache::match(const std::string& space, std::span<const int32_t> tokens,
                                     int max_pages, PageTable& table) {
  MEDLEY_CHECK_EQ(table.num_pages(), 0);
  Path path;
  const auto root = roots_.find(space);
  if (root == roots_.end()) return path;
  const Node* parent = root->second.get();
  while (path.num_pages < max_pages && tokens.size() >= static_cast<size_t>(page_size_)) {
    Node* next = child(parent, tokens.first(page_size_));
    if (next == nullptr) break;
    table.push_back(pool_.share(next->page_id));
    tokens = tokens.subspan(page_size_);
    parent = path.last = next;
    ++path.num_pages;
  }
  return path;
}

void PrefixCache::insert(const std::string& space, std::span<const int32_t> tokens,
                         PageTable& table, bool may_replace, Path& path) {
  const int num_full = static_cast<int>(tokens.size()) / page_size_;
  MEDLEY_CHECK_LE(num_full, table.num_pages());
  if (path.num_pages >= num_full || (path.has_parted && !may_replace)) return;
  Node* parent = path.last;
  if (parent == nullptr) {
    auto& root = roots_[space];
    if (root == nullptr) root = std::make_unique<Node>(Node{.space = space});
    parent = root.get();
  }
  for (int i = path.num_pages; i < num_full; ++i) {
    const auto page_tokens = tokens.subspan(static_cast<size_t>(i) * page_size_, page_size_);
    Node* next = child(parent, page_tokens);
    if (next == nullptr) {
      next = nodes_
                 .insert(
                     std::make_unique<Node>(Node{.parent = parent,
                                                 .tokens = {page_tokens.begin(), page_tokens.end()},
                                                 .page_id = table[i]}))
                 .first->get();
      pool_.keep(next->page_id);
      node_of_page_[next->page_id] = next;
      ++parent->num_children;
    } else if (may_replace) {
      table.replace(i, pool_.share(next->page_id));
    } else {
      path.has_parted = true;
      return;
    }
    parent = path.last = next;
    path.num_pages = i + 1;
  }
}

void PrefixCache::evict(int num_free) {
  while (pool_.num_free() < num_free) {
    const std::optional<int32_t> page_id = pool_.oldest_cached();
    if (!page_id) return;
    remove(node_of_page_[*page_id]);
  }
}

void PrefixCache::remove(Node* node) {
  MEDLEY_CHECK_EQ(node->num_children, 0);
  pool_.forget(node->page_id);
  node_of_page_[node->page_id] = nullptr;
  Node* parent = node->parent;
  nodes_.erase(nodes_.find(node->edge()));
  if (--parent->num_children == 0 && parent->parent == nullptr) roots_.erase(parent->space);
}

}  // namespace medley
