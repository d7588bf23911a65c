#include "cuda/pinned_arena.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/check.h"

namespace medley::cuda {
namespace {

constexpr size_t kMaxTouchThreads = 8;

size_t host_bytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Makes the pages exist, on several threads: the driver would do it on one.
void touch(uint8_t* begin, size_t num_bytes) {
  const size_t num_threads =
      std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kMaxTouchThreads);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t share = num_bytes / num_threads / page * page;
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < num_threads; ++i) {
    uint8_t* from = begin + i * share;
    const uint8_t* to = i + 1 == num_threads ? begin + num_bytes : from + share;
    threads.emplace_back([=] {
      for (uint8_t* at = from; at < to; at += page) *static_cast<volatile uint8_t*>(at) = 0;
    });
  }
}

}  // namespace

PinnedRange::PinnedRange(PinnedRange&& other) noexcept
    : arena_(std::exchange(other.arena_, nullptr)),
      offset_(other.offset_),
      num_bytes_(std::exchange(other.num_bytes_, 0)) {}

PinnedRange& PinnedRange::operator=(PinnedRange&& other) noexcept {
  std::swap(arena_, other.arena_);
  std::swap(offset_, other.offset_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

PinnedRange::~PinnedRange() {
  if (arena_ != nullptr) arena_->free(offset_);
}

uint8_t* PinnedRange::data() const {
  return arena_ == nullptr ? nullptr : arena_->begin_ + offset_;
}

PinnedArena::~PinnedArena() {
  if (ahead_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    taken_.notify_all();
    ahead_.join();
  }
  if (begin_ == nullptr) return;
  for (size_t at = 0; at < ranges_.capacity(); at += kSlabBytes) cudaHostUnregister(begin_ + at);
  ::munmap(begin_, reserved_bytes_);
}

Result<void> PinnedArena::grow(size_t num_bytes) {
  if (begin_ == nullptr) {
    reserved_bytes_ = host_bytes() / kSlabBytes * kSlabBytes;
    void* memory = ::mmap(nullptr, reserved_bytes_, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
    MEDLEY_CHECK(memory != MAP_FAILED, "no addresses for pinned memory");
    begin_ = static_cast<uint8_t*>(memory);
    ::madvise(begin_, reserved_bytes_, MADV_HUGEPAGE);  // where the system has it
  }
  const size_t end = (num_bytes + kSlabBytes - 1) / kSlabBytes * kSlabBytes;
  for (size_t done = 0; done < end; done += kSlabBytes) {
    // Only growth changes the capacity.
    const size_t locked = ranges_.capacity();
    const auto short_of_memory = [&] {
      return Error{ErrorCode::kOverloaded,
                   fmt::format("page-locked host memory: wanted {} bytes more, {} of {} are taken",
                               end - done, locked, reserved_bytes_)};
    };
    if (locked + kSlabBytes > reserved_bytes_) return short_of_memory();
    touch(begin_ + locked, kSlabBytes);
    const cudaError_t error =
        cudaHostRegister(begin_ + locked, kSlabBytes, cudaHostRegisterDefault);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return short_of_memory();
    }
    MEDLEY_CUDA_CHECK(error);
    std::lock_guard lock(mutex_);
    ranges_.grow(kSlabBytes);
  }
  return {};
}

Result<void> PinnedArena::reserve(size_t num_bytes) {
  std::lock_guard lock(grow_mutex_);
  const size_t locked = ranges_.capacity();
  return locked >= num_bytes ? Result<void>() : grow(num_bytes - locked);
}

void PinnedArena::stay_ahead(size_t num_bytes) {
  {
    std::lock_guard lock(mutex_);
    ahead_bytes_ = num_bytes;
  }
  taken_.notify_all();
  if (!ahead_.joinable()) ahead_ = std::thread([this] { run_ahead(); });
}

// Slab by slab, so that who needs memory now waits for one at most. Without memory it gives up:
// allocate() says so when it matters.
void PinnedArena::run_ahead() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      taken_.wait(
          lock, [&] { return is_stopping_ || ranges_.capacity() < ranges_.used() + ahead_bytes_; });
      if (is_stopping_) return;
    }
    std::lock_guard lock(grow_mutex_);
    if (!grow(kSlabBytes).ok()) return;
  }
}

Result<PinnedRange> PinnedArena::allocate(size_t num_bytes) {
  PinnedRange range;
  if (num_bytes == 0) return range;
  const auto take = [&] {
    std::lock_guard lock(mutex_);
    const std::optional<size_t> offset = ranges_.allocate(num_bytes);
    if (!offset) return false;
    range.arena_ = this;
    range.offset_ = *offset;
    range.num_bytes_ = num_bytes;
    taken_.notify_one();
    return true;
  };
  if (take()) return range;
  std::lock_guard lock(grow_mutex_);
  while (!take()) MEDLEY_TRY(grow(std::min(num_bytes, kSlabBytes)));
  return range;
}

void PinnedArena::free(size_t offset) {
  std::lock_guard lock(mutex_);
  ranges_.free(offset);
}

size_t PinnedArena::locked_bytes() const {
  std::lock_guard lock(mutex_);
  return ranges_.capacity();
}

size_t PinnedArena::used_bytes() const {
  std::lock_guard lock(mutex_);
  return ranges_.used();
}

}  // namespace medley::cuda
