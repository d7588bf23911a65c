#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace medley::apps {

// Where a server listens: "http://host:port", without a path.
struct ServerAddress {
  std::string host;
  std::string port;
};
Result<ServerAddress> parse_base_url(const std::string& url);

// One connection, kept open between calls and opened anew when the server has closed it. Blocking;
// one thread at a time.
class HttpClient {
 public:
  explicit HttpClient(const ServerAddress& address);
  ~HttpClient();

  // The body of an answer of status 200; else an error with the status and the server's words.
  Result<std::string> get(const std::string& target);
  // Posts JSON; the answer's body is dropped.
  Result<void> post(const std::string& target, const std::string& body);
  // Posts JSON and hands every server-sent event's data ("[DONE]" too) to `on_event` as it comes.
  Result<void> post_stream(const std::string& target, const std::string& body,
                           const std::function<void(std::string_view)>& on_event);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace medley::apps
