#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace medley::server::testing {

struct ClientResponse {
  int status = 0;                              // 0: the server closed before it answered
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
};

// A blocking HTTP/1.1 client on plain sockets, so that tests can also send what no library would.
class HttpClient {
 public:
  explicit HttpClient(uint16_t port);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;

  ClientResponse get(const std::string& path, const std::string& headers = {});
  ClientResponse post(const std::string& path, const std::string& body,
                      const std::string& headers = {});
  ClientResponse request(const std::string& method, const std::string& path,
                         const std::string& headers, const std::string& body);

  void send(const std::string& bytes);
  // Reads until `text` has come; false if the server closes first.
  bool read_until(const std::string& text);
  ClientResponse read_response();
  // Takes what comes within a few milliseconds, whatever it is.
  void read_available();
  void close();

 private:
  bool read_more();
  std::string take_line();

  int fd_ = -1;
  std::string buffer_;
};

}  // namespace medley::server::testing
