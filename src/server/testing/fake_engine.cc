#include "server/testing/fake_engine.h"

#include <algorithm>
#include <chrono>

#include "base/clock.h"

namespace medley::server::testing {

FakeEngine::FakeEngine(Options options, TokenEventSink sink)
    : options_(options), sink_(std::move(sink)), thread_([this] { run(); }) {}

FakeEngine::~FakeEngine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Result<void> FakeEngine::submit(Request request) {
  std::lock_guard lock(mutex_);
  if (draining_) return Error{ErrorCode::kUnavailable, "draining"};
  if (static_cast<int>(running_.size()) >= options_.max_running) {
    return Error{ErrorCode::kOverloaded, "the queue is full"};
  }
  last_request_ = request;
  const RequestId id = request.id;
  running_[id].request = std::move(request);
  changed_.notify_all();
  return {};
}

void FakeEngine::abort(RequestId id) {
  std::lock_guard lock(mutex_);
  const auto it = running_.find(id);
  if (it != running_.end()) it->second.aborted = true;
}

EngineStats FakeEngine::stats() const {
  std::lock_guard lock(mutex_);
  EngineStats stats{.num_running = static_cast<int>(running_.size()),
                    .num_pages = 100,
                    .num_free_pages = 100 - std::min(100, static_cast<int>(running_.size())),
                    .page_size = 16};
  return stats;
}

void FakeEngine::drain(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  if (changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                        [&] { return running_.empty(); })) {
    return;
  }
  for (auto& [id, running] : running_) running.aborted = true;
  changed_.wait(lock, [&] { return running_.empty(); });
}

void FakeEngine::break_all() {
  std::lock_guard lock(mutex_);
  for (auto& [id, running] : running_) running.broken = true;
}

Request FakeEngine::last_request() const {
  std::lock_guard lock(mutex_);
  return last_request_;
}

bool FakeEngine::wait_until_idle() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return running_.empty(); });
}

void FakeEngine::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (running_.empty()) {
      changed_.wait(lock, [&] { return stopping_ || !running_.empty(); });
      continue;
    }
    std::vector<TokenEvent> events;
    for (auto it = running_.begin(); it != running_.end();) {
      events.push_back(step(it->second));
      it = events.back().finish ? running_.erase(it) : std::next(it);
    }
    if (running_.empty()) changed_.notify_all();
    lock.unlock();
    sink_(std::move(events));
    std::this_thread::sleep_for(std::chrono::nanoseconds(options_.step_ns));
    lock.lock();
  }
}

TokenEvent FakeEngine::step(Running& running) {
  const Request& request = running.request;
  TokenEvent event{.request_id = request.id, .time_ns = now_ns()};
  if (running.aborted || running.broken) {
    event.finish = running.aborted ? FinishReason::kAbort : FinishReason::kError;
    if (running.broken) event.error = internal_error("the device failed");
    return event;
  }
  const size_t size = request.prompt.size();
  if (request.sampling.num_prompt_logprobs >= 0 && running.num_scored < size) {
    const bool is_first_step = running.num_scored == 1 && size > 2;
    const size_t end = is_first_step ? size / 2 + 1 : size;
    for (size_t& i = running.num_scored; i < end; ++i) {
      const int32_t id = request.prompt[i];
      const float logprob = -0.25f * static_cast<float>(i);
      PromptLogprob scored{.token = {id, logprob}, .rank = static_cast<int>(i) + 1};
      for (int k = 0; k < request.sampling.num_prompt_logprobs; ++k) {
        scored.top.push_back({.token_id = id + k + 1, .logprob = -0.125f});
      }
      event.prompt_logprobs.push_back(std::move(scored));
    }
    if (is_first_step) return event;
  }
  const size_t at = static_cast<size_t>(running.num_tokens++) % size;
  const int32_t token = request.prompt[request.adapter.empty() ? at : size - 1 - at];
  event.token_id = token;
  if (request.sampling.num_top_logprobs >= 0) {
    event.logprob = -0.5f;
    for (int i = 0; i < request.sampling.num_top_logprobs; ++i) {
      event.top_logprobs.push_back(
          {.token_id = token + i, .logprob = -0.5f - static_cast<float>(i)});
    }
  }
  const auto& stops = request.sampling.stop_token_ids;
  if (token == options_.end_token || std::ranges::find(stops, token) != stops.end()) {
    event.finish = FinishReason::kStop;
    event.stop_token_id = token;
  } else if (running.num_tokens == request.sampling.max_tokens) {
    event.finish = FinishReason::kLength;
  }
  return event;
}

}  // namespace medley::server::testing
