#include "weights/whole_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/loading_threads.h"
#include "base/thread_pool.h"

namespace medley {
namespace {

constexpr size_t kReadChunkBytes = size_t{8} << 20;

// A regular file, open for reading.
class OpenFile {
 public:
  static Result<OpenFile> open(const std::string& path) {
    OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.fd_ < 0) {
      const std::string message = fmt::format("{}: {}", path, std::strerror(errno));
      return errno == ENOENT ? not_found(message) : invalid_argument(message);
    }
    struct stat info{};
    if (::fstat(file.fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
      return invalid_argument(fmt::format("{}: not a regular file", path));
    }
    file.size_ = static_cast<size_t>(info.st_size);
    return file;
  }
  OpenFile(OpenFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }

  int fd() const { return fd_; }
  size_t size() const { return size_; }

 private:
  explicit OpenFile(int fd) : fd_(fd) {}

  int fd_;
  size_t size_ = 0;
};

// Hands on what has been read so far, in order, while other threads read more.
class Follower {
 public:
  Follower(std::span<const std::byte> file, const WholeFile::OnBytes& on_bytes)
      : file_(file), on_bytes_(on_bytes), is_read_(num_chunks()) {
    if (on_bytes_) thread_ = std::thread([this] { run(); });
  }
  ~Follower() { finish(); }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  size_t num_chunks() const { return (file_.size() + kReadChunkBytes - 1) / kReadChunkBytes; }
  std::span<const std::byte> chunk(size_t i) const {
    const size_t begin = i * kReadChunkBytes;
    return file_.subspan(begin, std::min(kReadChunkBytes, file_.size() - begin));
  }
  // The chunk is there. Any thread.
  void add(size_t i) {
    {
      const std::lock_guard lock(mutex_);
      is_read_[i] = true;
    }
    more_.notify_one();
  }
  // Nothing comes any more; returns when what came has been handed on.
  void finish() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      is_finished_ = true;
    }
    more_.notify_one();
    thread_.join();
  }

 private:
  void run() {
    for (size_t next = 0; next < num_chunks();) {
      size_t end = next;
      {
        std::unique_lock lock(mutex_);
        more_.wait(lock, [&] { return is_finished_ || is_read_[next]; });
        while (end < num_chunks() && is_read_[end]) ++end;
      }
      if (end == next) return;
      const std::byte* begin = chunk(next).data();
      on_bytes_({begin, chunk(end - 1).data() + chunk(end - 1).size()});
      next = end;
    }
  }

  const std::span<const std::byte> file_;
  const WholeFile::OnBytes& on_bytes_;
  std::mutex mutex_;
  std::condition_variable more_;
  std::vector<bool> is_read_;
  bool is_finished_ = false;
  std::thread thread_;
};

// Fills `target` from `begin` on. Returns what went wrong, or nothing.
std::string read_range(int fd, size_t begin, std::span<std::byte> target) {
  while (!target.empty()) {
    const ssize_t count = ::pread(fd, target.data(), target.size(), static_cast<off_t>(begin));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fmt::format("can't be read: {}", std::strerror(errno));
    if (count == 0) return "became shorter while it was read";
    begin += static_cast<size_t>(count);
    target = target.subspan(static_cast<size_t>(count));
  }
  return "";
}

}  // namespace

WholeFile::~WholeFile() {
  if (mapped_ != nullptr) ::munmap(mapped_, size_);
}

Result<WholeFile> WholeFile::map(const std::string& path) {
  MEDLEY_TRY_ASSIGN(const OpenFile open, OpenFile::open(path));
  WholeFile file;
  if (open.size() == 0) return file;
  void* memory = ::mmap(nullptr, open.size(), PROT_READ, MAP_PRIVATE, open.fd(), 0);
  if (memory == MAP_FAILED) {
    return invalid_argument(fmt::format("{}: can't be mapped: {}", path, std::strerror(errno)));
  }
  file.mapped_ = memory;
  file.size_ = open.size();
  return file;
}

// Several threads: a page cache gives one thread a fraction of what memory can do.
Result<WholeFile> WholeFile::copy(const std::string& path, const OnBytes& on_bytes) {
  MEDLEY_TRY_ASSIGN(const OpenFile open, OpenFile::open(path));
  WholeFile file;
  if (open.size() == 0) return file;
  file.copy_ = FileMemory::allocate(open.size());
  file.size_ = open.size();
  std::byte* target = file.copy_.data();
  if (target == nullptr) {
    return invalid_argument(fmt::format("{}: no memory for its {} bytes", path, open.size()));
  }
  Follower follower({target, open.size()}, on_bytes);
  std::mutex mutex;
  std::string problem;
  const auto num_chunks = static_cast<int64_t>(follower.num_chunks());
  // Who follows has threads of its own.
  const int num_threads = on_bytes ? std::max(1, num_loading_threads() / 2) : num_loading_threads();
  ThreadPool(static_cast<int>(std::min<int64_t>(num_chunks, num_threads)))
      .parallel_for(num_chunks, [&](int64_t i) {
        const std::span<const std::byte> chunk = follower.chunk(i);
        const size_t begin = chunk.data() - target;
        std::string found = read_range(open.fd(), begin, {target + begin, chunk.size()});
        if (found.empty()) return follower.add(i);
        const std::lock_guard lock(mutex);
        problem = std::move(found);
      });
  follower.finish();
  if (!problem.empty()) return invalid_argument(fmt::format("{}: {}", path, problem));
  return file;
}

}  // namespace medley
