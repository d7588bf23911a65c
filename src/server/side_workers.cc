#include "server/side_workers.h"

#include <optional>
#include <utility>

#include "server/replies.h"

namespace medley::server {

SideWorkers::SideWorkers(int num_threads, size_t capacity) : capacity_(capacity), jobs_(capacity) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

SideWorkers::~SideWorkers() {
  jobs_.close();
  for (std::thread& thread : threads_) thread.join();
}

void SideWorkers::submit(Answer answer, std::shared_ptr<Exchange> exchange) {
  Job job{.answer = std::move(answer), .exchange = std::move(exchange)};
  if (jobs_.try_push(std::move(job))) return;
  // NOLINTNEXTLINE(bugprone-use-after-move): a queue that refuses takes nothing.
  job.exchange->respond(error_reply(
      {ErrorCode::kOverloaded, fmt::format("{} requests are waiting already", capacity_)}));
}

void SideWorkers::run() {
  while (const std::optional<Job> job = jobs_.pop()) job->exchange->respond(job->answer());
}

}  // namespace medley::server
