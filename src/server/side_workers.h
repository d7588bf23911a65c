#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/queue.h"
#include "server/http.h"

namespace medley::server {

// Threads for answers that take longer than an I/O thread may wait and need no step of the model.
// Thread-safe; destruction finishes what was taken.
class SideWorkers {
 public:
  using Answer = std::function<HttpResponse()>;

  SideWorkers(int num_threads, size_t capacity);
  ~SideWorkers();

  // Sends what `answer` returns, later; 429 at once when too much is waiting.
  void submit(Answer answer, std::shared_ptr<Exchange> exchange);

 private:
  struct Job {
    Answer answer;
    std::shared_ptr<Exchange> exchange;
  };
  void run();

  const size_t capacity_;
  BoundedQueue<Job> jobs_;
  std::vector<std::thread> threads_;
};

}  // namespace medley::server
