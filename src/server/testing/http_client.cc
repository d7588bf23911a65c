#include "server/testing/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace medley::server::testing {

HttpClient::HttpClient(uint16_t port) {
  fd_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connected = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  MEDLEY_CHECK_EQ(connected, 0);
  const timeval timeout{.tv_sec = 20, .tv_usec = 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
}

HttpClient::~HttpClient() { close(); }

void HttpClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

ClientResponse HttpClient::get(const std::string& path, const std::string& headers) {
  return request("GET", path, headers, {});
}

ClientResponse HttpClient::post(const std::string& path, const std::string& body,
                                const std::string& headers) {
  return request("POST", path, headers, body);
}

ClientResponse HttpClient::request(const std::string& method, const std::string& path,
                                   const std::string& headers, const std::string& body) {
  send(fmt::format("{} {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n{}\r\n{}", method, path,
                   body.size(), headers, body));
  return read_response();
}

void HttpClient::send(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;  // refused early: the answer is there to be read
    sent += static_cast<size_t>(n);
  }
}

bool HttpClient::read_more() {
  char bytes[65536];
  const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
  if (n <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(n));
  return true;
}

bool HttpClient::read_until(const std::string& text) {
  while (buffer_.find(text) == std::string::npos) {
    if (!read_more()) return false;
  }
  return true;
}

void HttpClient::read_available() {
  const timeval timeout{.tv_sec = 0, .tv_usec = 2000};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  while (read_more()) {
  }
}

std::string HttpClient::take_line() {
  if (!read_until("\r\n")) return {};
  const size_t end = buffer_.find("\r\n");
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return line;
}

ClientResponse HttpClient::read_response() {
  ClientResponse response;
  const std::string status_line = take_line();
  if (status_line.size() < 12) return response;
  response.status = std::stoi(status_line.substr(9, 3));
  for (std::string line = take_line(); !line.empty(); line = take_line()) {
    const size_t colon = line.find(':');
    std::string name = line.substr(0, colon);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    response.headers[name] = line.substr(line.find_first_not_of(' ', colon + 1));
  }
  if (response.status == 100) return read_response();
  if (response.headers.contains("transfer-encoding")) {
    for (;;) {
      const size_t size = std::stoul("0" + take_line(), nullptr, 16);
      while (buffer_.size() < size + 2 && read_more()) {
      }
      response.body += buffer_.substr(0, size);
      buffer_.erase(0, size + 2);
      if (size == 0) return response;
    }
  }
  if (!response.headers.contains("content-length")) {  // until the close
    while (read_more()) {
    }
    response.body = std::exchange(buffer_, {});
    return response;
  }
  const size_t size = std::stoul(response.headers["content-length"]);
  while (buffer_.size() < size && read_more()) {
  }
  response.body = buffer_.substr(0, size);
  buffer_.erase(0, size);
  return response;
}

}  // namespace medley::server::testing
