#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace medley {

// Fixed pool for data-parallel loops. One caller at a time (not thread-safe between callers); the
// calling thread takes part, so a pool of size 1 starts no thread.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Runs body(i) for i in [0, count), each exactly once, and returns when all are done. `body` must
  // not throw.
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body);

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable start_, done_;
  const std::function<void(int64_t)>* body_ = nullptr;
  int64_t count_ = 0;
  int64_t next_ = 0;
  int64_t finished_ = 0;
  uint64_t generation_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace medley
