#include "server/stream_buffer.h"

#include <utility>

namespace medley::server {

void StreamBuffer::respond(HttpResponse response) {
  std::unique_lock lock(mutex_);
  if (state_ != State::kOpen) return;
  response_ = std::move(response);
  state_ = State::kEnded;
  on_cancel_ = nullptr;
  notify(lock);
}

void StreamBuffer::write(std::string_view bytes) {
  std::unique_lock lock(mutex_);
  if (state_ != State::kOpen) return;
  if (bytes_.size() + bytes.size() > max_buffered_bytes_) return cancel(lock);
  bytes_ += bytes;
  notify(lock);
}

void StreamBuffer::end() {
  std::unique_lock lock(mutex_);
  if (state_ != State::kOpen) return;
  state_ = State::kEnded;
  on_cancel_ = nullptr;
  notify(lock);
}

void StreamBuffer::on_cancel(std::function<void()> callback) {
  std::unique_lock lock(mutex_);
  if (state_ == State::kOpen) {
    on_cancel_ = std::move(callback);
    return;
  }
  const bool cancelled = state_ == State::kCancelled;
  lock.unlock();
  if (cancelled) callback();
}

StreamBuffer::Taken StreamBuffer::take() {
  std::lock_guard lock(mutex_);
  notified_ = false;
  return {.response = std::exchange(response_, std::nullopt),
          .bytes = std::exchange(bytes_, {}),
          .ended = state_ == State::kEnded,
          .cancelled = state_ == State::kCancelled};
}

void StreamBuffer::cancel() {
  std::unique_lock lock(mutex_);
  if (state_ == State::kOpen) cancel(lock);
}

void StreamBuffer::notify(std::unique_lock<std::mutex>& lock) {
  const bool wake = !notified_;
  notified_ = true;
  lock.unlock();
  if (wake) wake_();
}

void StreamBuffer::cancel(std::unique_lock<std::mutex>& lock) {
  state_ = State::kCancelled;
  bytes_.clear();
  std::function<void()> callback = std::exchange(on_cancel_, nullptr);
  notify(lock);
  if (callback) callback();
}

}  // namespace medley::server
