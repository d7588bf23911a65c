#include "server/http_server.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "api/error_body.h"
#include "base/log.h"
#include "server/stream_buffer.h"

namespace medley::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::seconds;

constexpr auto kUse = asio::as_tuple(asio::use_awaitable);

HttpResponse error_response(int status, std::string_view message) {
  return {.status = status, .body = api::render_error(status, message)};
}

// How many there are now, for limits and drain. Thread-safe.
class Counter {
 public:
  void add(int change) {
    std::lock_guard lock(mutex_);
    count_ += change;
    if (count_ == 0) zero_.notify_all();
  }
  int count() const {
    std::lock_guard lock(mutex_);
    return count_;
  }
  bool wait_for_zero(int64_t timeout_ns) {
    std::unique_lock lock(mutex_);
    return zero_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [&] { return count_ == 0; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable zero_;
  int count_ = 0;
};

struct Scope {
  explicit Scope(Counter& counter) : counter_(counter) { counter_.add(1); }
  ~Scope() { counter_.add(-1); }
  Scope(const Scope&) = delete;
  Counter& counter_;
};

}  // namespace

struct HttpServer::State {
  explicit State(const HttpServerOptions& options)
      : options(options), context(options.num_threads), acceptor(asio::make_strand(context)) {}

  const HttpServerOptions options;
  HttpHandler* handler = nullptr;
  std::atomic<bool> draining = false;
  Counter connections;
  Counter exchanges;
  asio::io_context context;  // after what its coroutines refer to, which its end destroys
  tcp::acceptor acceptor;
  std::vector<std::thread> threads;

  asio::awaitable<void> accept();
};

namespace {

// One TCP connection. Lives in its coroutines; everything runs on its strand.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  template <class Server>
  Connection(tcp::socket socket, Server& server)
      : socket_(std::move(socket)),
        deadline_(socket_.get_executor()),
        wake_(socket_.get_executor()),
        options_(server.options),
        handler_(*server.handler),
        draining_(server.draining),
        exchanges_(server.exchanges) {}

  asio::awaitable<void> run() {
    for (;;) {
      http::request_parser<http::string_body> parser;
      parser.header_limit(static_cast<uint32_t>(options_.max_header_bytes));
      parser.body_limit(options_.max_body_bytes);
      std::optional<HttpResponse> refusal;
      if (!co_await read(parser, refusal)) break;
      const Scope exchange(exchanges_);
      const unsigned version = parser.get().version();
      if (refusal) {
        co_await send_whole(std::move(*refusal), version, /*keep_alive=*/false);
        co_await discard();
        break;
      }
      if (!co_await answer(parser.release(), version)) break;
    }
    deadline_.cancel();
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

  asio::awaitable<void> refuse(HttpResponse response) {
    co_await send_whole(std::move(response), 11, /*keep_alive=*/false);
  }

 private:
  // False when the connection is over. A request that can't be read gets a refusal.
  asio::awaitable<bool> read(http::request_parser<http::string_body>& parser,
                             std::optional<HttpResponse>& refusal) {
    if (buffer_.size() == 0) {
      arm(options_.idle_timeout_s);
      auto [ec, num_bytes] = co_await socket_.async_read_some(buffer_.prepare(kReadBytes), kUse);
      if (ec) co_return false;
      buffer_.commit(num_bytes);
    }
    arm(options_.request_timeout_s);
    auto [header_ec, header_bytes] =
        co_await http::async_read_header(socket_, buffer_, parser, kUse);
    error_code ec = header_ec;
    if (!ec && parser.get()[http::field::expect] == "100-continue") {
      constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      auto [write_ec, written] = co_await asio::async_write(socket_, asio::buffer(kContinue), kUse);
      ec = write_ec;
    }
    if (!ec) {
      auto [body_ec, body_bytes] = co_await http::async_read(socket_, buffer_, parser, kUse);
      ec = body_ec;
    }
    if (!ec) co_return true;
    if (ec == http::error::body_limit) {
      refusal = error_response(
          413, fmt::format("the body is larger than {} bytes", options_.max_body_bytes));
    } else if (ec == http::error::header_limit) {
      refusal = error_response(
          431, fmt::format("the header is larger than {} bytes", options_.max_header_bytes));
    } else if (ec.category() == http::make_error_code(http::error::bad_method).category() &&
               ec != http::error::end_of_stream && ec != http::error::partial_message) {
      refusal = error_response(400, fmt::format("not an HTTP request: {}", ec.message()));
    } else {
      co_return false;
    }
    co_return true;
  }

  // True when another request may follow.
  asio::awaitable<bool> answer(http::request<http::string_body> message, unsigned version) {
    using asio::experimental::awaitable_operators::operator||;
    bool keep_alive = message.keep_alive();
    const std::string_view target = message.target();
    HttpRequest request{.method = std::string(message.method_string()),
                        .path = std::string(target.substr(0, target.find('?'))),
                        .authorization = std::string(message[http::field::authorization]),
                        .body = std::move(message.body())};
    // The exchange may outlive the connection: it wakes it only through a weak pointer.
    auto exchange = std::make_shared<StreamBuffer>(
        options_.max_buffered_bytes, [executor = socket_.get_executor(), weak = weak_from_this()] {
          asio::post(executor, [weak] {
            if (const auto self = weak.lock()) self->wake_.cancel();
          });
        });
    deadline_.cancel();
    handler_.handle(std::move(request), exchange);
    const auto result = co_await (send(*exchange, version, keep_alive) || watch(*exchange));
    exchange->cancel();  // whoever still writes may stop
    const bool* sent = std::get_if<0>(&result);
    co_return sent != nullptr && *sent&& keep_alive && !draining_;
  }

  // Sends what the exchange gives until its end; true when all is written.
  asio::awaitable<bool> send(StreamBuffer& exchange, unsigned version, bool& keep_alive) {
    bool streaming = false;
    for (;;) {
      StreamBuffer::Taken taken = exchange.take();
      if (taken.cancelled) co_return false;
      if (taken.response) {
        co_return co_await send_whole(std::move(*taken.response), version,
                                      keep_alive && !draining_);
      }
      if (!taken.bytes.empty() || (taken.ended && !streaming)) {
        if (!streaming) {
          streaming = true;
          if (version < 11) keep_alive = false;  // no chunks in HTTP/1.0: the end is the close
          if (!co_await send_stream_header(version, keep_alive && !draining_)) co_return false;
        }
        if (!taken.bytes.empty() && !co_await send_part(taken.bytes, version)) co_return false;
      }
      if (taken.ended) co_return co_await send_stream_end(version);
      if (taken.bytes.empty()) {
        wake_.expires_at(asio::steady_timer::time_point::max());
        co_await wake_.async_wait(kUse);
      }
    }
  }

  // Reads on while the answer is under way: that is how a client's leaving is noticed. Returns when
  // it has left.
  asio::awaitable<void> watch(StreamBuffer& exchange) {
    for (;;) {
      if (buffer_.size() > options_.max_header_bytes) break;  // pipelining beyond all measure
      auto [ec, num_bytes] = co_await socket_.async_read_some(buffer_.prepare(kReadBytes), kUse);
      buffer_.commit(num_bytes);
      if (ec) break;
    }
    exchange.cancel();
  }

  asio::awaitable<bool> send_whole(HttpResponse response, unsigned version, bool keep_alive) {
    http::response<http::string_body> message(static_cast<http::status>(response.status), version);
    message.set(http::field::server, "medley");
    message.set(http::field::content_type, response.content_type);
    for (const auto& [name, value] : response.headers) message.set(name, value);
    message.keep_alive(keep_alive);
    message.body() = std::move(response.body);
    message.prepare_payload();
    arm(options_.request_timeout_s);
    auto [ec, num_bytes] = co_await http::async_write(socket_, message, kUse);
    co_return !ec;
  }

  // Reads what the client is still sending: closing before that would reset the connection, and the
  // refusal would be lost with it.
  asio::awaitable<void> discard() {
    error_code ec;
    socket_.shutdown(tcp::socket::shutdown_send, ec);
    arm(kDiscardTimeoutS);
    while (!ec) {
      buffer_.clear();
      auto [read_ec, num_bytes] =
          co_await socket_.async_read_some(buffer_.prepare(kReadBytes), kUse);
      ec = read_ec;
    }
  }

  asio::awaitable<bool> send_stream_header(unsigned version, bool keep_alive) {
    http::response<http::empty_body> message(http::status::ok, version);
    message.set(http::field::server, "medley");
    message.set(http::field::content_type, "text/event-stream; charset=utf-8");
    message.set(http::field::cache_control, "no-cache");
    message.keep_alive(keep_alive);
    if (version >= 11) message.chunked(true);
    http::response_serializer<http::empty_body> serializer(message);
    arm(options_.request_timeout_s);
    auto [ec, num_bytes] = co_await http::async_write_header(socket_, serializer, kUse);
    co_return !ec;
  }

  asio::awaitable<bool> send_part(const std::string& bytes, unsigned version) {
    arm(options_.request_timeout_s);
    if (version < 11) {
      auto [ec, num_bytes] = co_await asio::async_write(socket_, asio::buffer(bytes), kUse);
      co_return !ec;
    }
    auto [ec, num_bytes] =
        co_await asio::async_write(socket_, http::make_chunk(asio::buffer(bytes)), kUse);
    deadline_.cancel();  // the next part may take as long as the model takes
    co_return !ec;
  }

  asio::awaitable<bool> send_stream_end(unsigned version) {
    if (version < 11) co_return true;
    arm(options_.request_timeout_s);
    auto [ec, num_bytes] = co_await asio::async_write(socket_, http::make_chunk_last(), kUse);
    co_return !ec;
  }

  // Closes the connection unless this is called again, or the timer cancelled, in time.
  void arm(int timeout_s) {
    deadline_.expires_after(seconds(timeout_s));
    deadline_.async_wait([weak = weak_from_this()](error_code ec) {
      const auto self = weak.lock();
      if (ec || !self || self->deadline_.expiry() > std::chrono::steady_clock::now()) return;
      error_code ignored;
      self->socket_.close(ignored);
    });
  }

  static constexpr size_t kReadBytes = 16 << 10;
  static constexpr int kDiscardTimeoutS = 2;

  tcp::socket socket_;
  asio::steady_timer deadline_;
  asio::steady_timer wake_;  // never expires: cancelled when the exchange has something to send
  boost::beast::flat_buffer buffer_;
  const HttpServerOptions& options_;
  HttpHandler& handler_;
  const std::atomic<bool>& draining_;
  Counter& exchanges_;
};

asio::awaitable<void> serve(std::shared_ptr<Connection> connection, Counter& connections,
                            int max_connections) {
  const Scope scope(connections);
  if (connections.count() > max_connections) {
    co_await connection->refuse(error_response(503, "too many connections"));
    co_return;
  }
  co_await connection->run();
}

}  // namespace

asio::awaitable<void> HttpServer::State::accept() {
  while (acceptor.is_open()) {
    auto [ec, socket] = co_await acceptor.async_accept(asio::make_strand(context), kUse);
    if (ec == asio::error::operation_aborted || ec == asio::error::bad_descriptor) break;
    if (ec) {  // out of file descriptors, or the client has gone already
      log::warn("accept: {}", ec.message());
      asio::steady_timer pause(acceptor.get_executor(), std::chrono::milliseconds(100));
      co_await pause.async_wait(kUse);
      continue;
    }
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    const auto executor = socket.get_executor();
    asio::co_spawn(executor,
                   serve(std::make_shared<Connection>(std::move(socket), *this), connections,
                         options.max_connections),
                   asio::detached);
  }
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() { stop(); }

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpServerOptions& options) {
  auto state = std::make_unique<State>(options);
  error_code ec;
  tcp::resolver resolver(state->context);
  const auto endpoints =
      resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, ec);
  if (ec || endpoints.empty()) {
    return invalid_argument(
        fmt::format("host \"{}\" has no address: {}", options.host, ec.message()), "host");
  }
  const tcp::endpoint endpoint = endpoints.begin()->endpoint();
  state->acceptor.open(endpoint.protocol(), ec);
  if (!ec) state->acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) state->acceptor.bind(endpoint, ec);
  if (!ec) state->acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) {
    const bool taken = ec == asio::error::address_in_use;
    return Error{taken ? ErrorCode::kConflict : ErrorCode::kInvalidArgument,
                 fmt::format("can't listen on {}:{}: {}", options.host, options.port, ec.message()),
                 "port"};
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

uint16_t HttpServer::port() const { return state_->acceptor.local_endpoint().port(); }

void HttpServer::start(HttpHandler& handler) {
  state_->handler = &handler;
  asio::co_spawn(state_->acceptor.get_executor(), state_->accept(), asio::detached);
  for (int i = 0; i < state_->options.num_threads; ++i) {
    state_->threads.emplace_back([this] { state_->context.run(); });
  }
}

void HttpServer::stop_accepting() {
  state_->draining = true;
  asio::post(state_->acceptor.get_executor(), [this] {
    error_code ignored;
    state_->acceptor.close(ignored);
  });
}

bool HttpServer::wait_until_idle(int64_t timeout_ns) {
  return state_->exchanges.wait_for_zero(timeout_ns);
}

void HttpServer::stop() {
  state_->context.stop();
  for (std::thread& thread : state_->threads) thread.join();
  state_->threads.clear();
}

}  // namespace medley::server
