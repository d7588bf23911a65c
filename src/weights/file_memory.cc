#include "weights/file_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace medley {
namespace {

constexpr size_t kGranule = size_t{2} << 20;
constexpr size_t kMaxKept = 2;  // as many as the adapter store has loaders
// Larger pieces go back to the system, as do all that small ones would waste half of.
constexpr size_t kMaxKeptBytes = size_t{1} << 30;

struct Piece {
  std::byte* data = nullptr;
  size_t capacity = 0;
};

// Never destroyed: pieces come back until the process ends.
struct Kept {
  std::mutex mutex;
  std::vector<Piece> pieces;  // the longest unused first
};
Kept& kept() {
  static Kept& kept = *new Kept;
  return kept;
}

}  // namespace

FileMemory FileMemory::allocate(size_t num_bytes) {
  const size_t capacity = (num_bytes + kGranule - 1) / kGranule * kGranule;
  {
    Kept& all = kept();
    const std::lock_guard lock(all.mutex);
    const auto found = std::ranges::find_if(all.pieces, [&](const Piece& piece) {
      return piece.capacity >= capacity && piece.capacity / 2 <= capacity;
    });
    if (found != all.pieces.end()) {
      const Piece piece = *found;
      all.pieces.erase(found);
      return {piece.data, piece.capacity};
    }
  }
  void* memory = ::mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                        /*fd=*/-1, 0);
  if (memory == MAP_FAILED) return {};
  ::madvise(memory, capacity, MADV_HUGEPAGE);  // fewer faults, where the system has it
  return {static_cast<std::byte*>(memory), capacity};
}

FileMemory::~FileMemory() {
  if (data_ == nullptr) return;
  Piece piece = {data_, capacity_};
  if (capacity_ <= kMaxKeptBytes) {
    Kept& all = kept();
    const std::lock_guard lock(all.mutex);
    all.pieces.push_back(piece);
    if (all.pieces.size() <= kMaxKept) return;
    piece = all.pieces.front();
    all.pieces.erase(all.pieces.begin());
  }
  ::munmap(piece.data, piece.capacity);
}

}  // namespace medley
