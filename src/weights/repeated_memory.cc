#include "weights/repeated_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace medley {
namespace {

class FileInMemory {
 public:
  FileInMemory() : fd_(::memfd_create("medley", MFD_CLOEXEC)) {}
  ~FileInMemory() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileInMemory(const FileInMemory&) = delete;
  FileInMemory& operator=(const FileInMemory&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

Error refused(const char* what) {
  return {ErrorCode::kUnavailable, fmt::format("{}: {}", what, std::strerror(errno))};
}

}  // namespace

RepeatedMemory::RepeatedMemory(RepeatedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

RepeatedMemory& RepeatedMemory::operator=(RepeatedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

RepeatedMemory::~RepeatedMemory() {
  if (data_ != nullptr) ::munmap(data_, num_bytes_);
}

Result<RepeatedMemory> RepeatedMemory::make(size_t num_bytes,
                                            const std::function<void(std::span<std::byte>)>& fill) {
  const FileInMemory file;
  if (file.fd() < 0 || ::ftruncate(file.fd(), kPeriod) != 0) return refused("a file in memory");
  RepeatedMemory memory;
  const size_t size = (num_bytes + kPeriod - 1) / kPeriod * kPeriod;
  void* place =
      ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  if (place == MAP_FAILED) return refused("address space");
  memory.data_ = static_cast<std::byte*>(place);
  memory.num_bytes_ = size;
  for (size_t at = 0; at < size; at += kPeriod) {
    const int access = at == 0 ? PROT_READ | PROT_WRITE : PROT_READ;
    if (::mmap(memory.data_ + at, kPeriod, access, MAP_SHARED | MAP_FIXED, file.fd(), 0) ==
        MAP_FAILED) {
      return refused("mapping a piece of memory repeatedly");
    }
  }
  if (size > 0) {
    fill({memory.data_, kPeriod});
    if (::mprotect(memory.data_, kPeriod, PROT_READ) != 0) return refused("write protection");
  }
  return memory;
}

}  // namespace medley
