#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "server/http.h"

namespace medley::server {

struct HttpServerOptions {
  std::string host = "0.0.0.0";
  uint16_t port = 8000;  // 0: any free one
  int num_threads = 2;
  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 16 << 20;
  size_t max_buffered_bytes = 4 << 20;  // of a stream that its client does not read
  int max_connections = 16384;
  int idle_timeout_s = 120;    // between requests
  int request_timeout_s = 60;  // for a request to arrive, and for a write to make progress
};

// HTTP/1.1 over TCP: keep-alive, chunked streams, limits on everything a client can make large.
// Must outlive every Exchange it has handed out. Members are to be called from one thread, except
// where noted.
class HttpServer {
 public:
  // Binds and listens. kConflict when the port is taken, kInvalidArgument for an address that can't
  // be had.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpServerOptions& options);
  ~HttpServer();  // stops

  uint16_t port() const;
  // Starts to accept; `handler` must live until stop().
  void start(HttpHandler& handler);
  // No new connections; those that exist are closed after the answer they are waiting for.
  void stop_accepting();
  // Waits until every exchange has ended and its bytes are written, or the time has passed.
  bool wait_until_idle(int64_t timeout_ns);
  // Drops all connections and joins the threads.
  void stop();

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace medley::server
