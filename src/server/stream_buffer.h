#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "server/http.h"

namespace medley::server {

// The hand-over between the threads that write an answer and the connection that sends it: an
// Exchange whose bytes wait in a bounded buffer. Thread-safe.
class StreamBuffer : public Exchange {
 public:
  // `wake` is called (on the writer's thread) when there is something to take and nothing was
  // before.
  StreamBuffer(size_t max_buffered_bytes, std::function<void()> wake)
      : max_buffered_bytes_(max_buffered_bytes), wake_(std::move(wake)) {}

  void respond(HttpResponse response) override;
  void write(std::string_view bytes) override;
  void end() override;
  void on_cancel(std::function<void()> callback) override;

  // What the connection finds: the whole answer, or the bytes since the last call.
  struct Taken {
    std::optional<HttpResponse> response;
    std::string bytes;
    bool ended = false;
    bool cancelled = false;
  };
  Taken take();

  // The client is gone.
  void cancel();

 private:
  enum class State { kOpen, kEnded, kCancelled };

  void notify(std::unique_lock<std::mutex>& lock);
  void cancel(std::unique_lock<std::mutex>& lock);

  const size_t max_buffered_bytes_;
  const std::function<void()> wake_;
  std::mutex mutex_;
  State state_ = State::kOpen;
  bool notified_ = false;
  std::optional<HttpResponse> response_;
  std::string bytes_;
  std::function<void()> on_cancel_;
};

}  // namespace medley::server
