#include "apps/http_client.h"

#include <fmt/format.h>

#include <array>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>

namespace medley::apps {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

constexpr size_t kReadBytes = 1 << 14;

// Cuts a stream of bytes into the data of its events, one line each.
class EventLines {
 public:
  explicit EventLines(const std::function<void(std::string_view)>& on_event)
      : on_event_(on_event) {}
  void add(std::string_view bytes) {
    pending_ += bytes;
    size_t begin = 0;
    for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      std::string_view line(pending_.data() + begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.starts_with("data: ")) on_event_(line.substr(6));
    }
    pending_.erase(0, begin);
  }

 private:
  const std::function<void(std::string_view)>& on_event_;
  std::string pending_;
};

}  // namespace

Result<ServerAddress> parse_base_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const size_t colon = url.rfind(':');
  if (!url.starts_with(kScheme) || colon <= kScheme.size() ||
      url.find_first_not_of("0123456789", colon + 1) != std::string::npos ||
      colon + 1 == url.size()) {
    return invalid_argument(fmt::format("expected http://HOST:PORT, found {}", url), "--base-url");
  }
  return ServerAddress{url.substr(kScheme.size(), colon - kScheme.size()), url.substr(colon + 1)};
}

struct HttpClient::State {
  explicit State(ServerAddress server) : address(std::move(server)) {}

  Result<void> connect() {
    if (socket.is_open()) return {};
    beast::error_code error;
    asio::ip::tcp::resolver resolver(io);
    const auto endpoints = resolver.resolve(address.host, address.port, error);
    if (!error) asio::connect(socket, endpoints, error);
    if (error) return failed("connect", error);
    error = socket.set_option(asio::ip::tcp::no_delay(true), error);
    if (error) return failed("no_delay", error);
    return {};
  }

  // The server may have closed its side already.
  void close() {
    beast::error_code ignored;
    static_cast<void>(socket.close(ignored));
  }

  Error failed(const char* what, const beast::error_code& error) {
    close();
    return Error{ErrorCode::kUnavailable,
                 fmt::format("{}:{}: {}: {}", address.host, address.port, what, error.message())};
  }

  // Sends a request and hands the body of a 200 to `on_bytes`.
  Result<void> exchange(http::request<http::string_body>& request,
                        const std::function<void(std::string_view)>& on_bytes) {
    request.set(http::field::host, address.host + ":" + address.port);
    request.prepare_payload();
    MEDLEY_TRY(connect());
    beast::error_code error;
    http::write(socket, request, error);
    if (error) return failed("write", error);
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    http::read_header(socket, buffer, parser, error);
    if (error) return failed("read", error);
    const auto status = parser.get().result_int();
    std::string refusal;
    std::array<char, kReadBytes> bytes;
    while (!parser.is_done()) {
      parser.get().body().data = bytes.data();
      parser.get().body().size = bytes.size();
      http::read_some(socket, buffer, parser, error);
      if (error == http::error::need_buffer) error = {};
      if (error) return failed("read", error);
      const std::string_view read(bytes.data(), bytes.size() - parser.get().body().size);
      if (status == 200) {
        on_bytes(read);
      } else {
        refusal += read;
      }
    }
    if (!parser.keep_alive()) close();
    if (status == 200) return {};
    return Error{ErrorCode::kUnavailable, fmt::format("status {}: {}", status, refusal)};
  }

  ServerAddress address;
  asio::io_context io;
  asio::ip::tcp::socket socket{io};
  beast::flat_buffer buffer;
};

HttpClient::HttpClient(const ServerAddress& address) : state_(std::make_unique<State>(address)) {}
HttpClient::~HttpClient() = default;

Result<std::string> HttpClient::get(const std::string& target) {
  http::request<http::string_body> request{http::verb::get, target, 11};
  std::string body;
  MEDLEY_TRY(state_->exchange(request, [&](std::string_view bytes) { body += bytes; }));
  return body;
}

Result<void> HttpClient::post(const std::string& target, const std::string& body) {
  return post_stream(target, body, [](std::string_view) {});
}

Result<void> HttpClient::post_stream(const std::string& target, const std::string& body,
                                     const std::function<void(std::string_view)>& on_event) {
  http::request<http::string_body> request{http::verb::post, target, 11};
  request.set(http::field::content_type, "application/json");
  request.body() = body;
  EventLines lines(on_event);
  return state_->exchange(request, [&](std::string_view bytes) { lines.add(bytes); });
}

}  // namespace medley::apps
