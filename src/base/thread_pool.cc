#include "base/thread_pool.h"

#include "base/check.h"

namespace medley {

ThreadPool::ThreadPool(int num_threads) {
  MEDLEY_CHECK_GE(num_threads, 1);
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    start_.notify_all();
  }
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  if (count <= 0) return;
  if (workers_.empty() || count == 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  std::unique_lock lock(mutex_);
  MEDLEY_CHECK(body_ == nullptr, "parallel_for is not reentrant");
  body_ = &body;
  count_ = count;
  next_ = 0;
  finished_ = 0;
  ++generation_;
  start_.notify_all();
  while (next_ < count_) {
    const int64_t i = next_++;
    lock.unlock();
    body(i);
    lock.lock();
    ++finished_;
  }
  done_.wait(lock, [&] { return finished_ == count_; });
  body_ = nullptr;
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  uint64_t seen = 0;
  for (;;) {
    start_.wait(lock, [&] { return stopping_ || (body_ != nullptr && generation_ != seen); });
    if (stopping_) return;
    seen = generation_;
    while (body_ != nullptr && generation_ == seen && next_ < count_) {
      const int64_t i = next_++;
      const auto* body = body_;
      lock.unlock();
      (*body)(i);
      lock.lock();
      ++finished_;
      if (finished_ == count_) done_.notify_one();
    }
  }
}

}  // namespace medley
