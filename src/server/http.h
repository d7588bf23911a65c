#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace medley::server {

struct HttpRequest {
  std::string method;
  std::string path;           // without the query
  std::string authorization;  // the header's value, or empty
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// The way back to the client of one request. All members are thread-safe and return at once;
// what comes after the end, or after the client has gone, is dropped.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // The whole answer, which ends the exchange.
  virtual void respond(HttpResponse response) = 0;

  // Or a stream of server-sent events: the first write sends the header (200).
  virtual void write(std::string_view bytes) = 0;
  virtual void end() = 0;

  // Calls `callback` once if the client goes away, or reads too slowly, before the end; at once if
  // that has happened already. It may run on any thread and must return quickly.
  virtual void on_cancel(std::function<void()> callback) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called on an I/O thread for each complete request; must not block.
  virtual void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) = 0;
};

}  // namespace medley::server
