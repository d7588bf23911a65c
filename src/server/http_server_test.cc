#include "server/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "server/testing/http_client.h"

namespace medley::server {
namespace {

using testing::ClientResponse;
using testing::HttpClient;

// Answers "METHOD path body"; /stream streams; /hold keeps the exchange for the test.
class EchoHandler : public HttpHandler {
 public:
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override {
    if (request.path == "/stream") {
      exchange->write("one");
      exchange->write("two");
      exchange->end();
      return;
    }
    if (request.path == "/hold") {
      exchange->on_cancel([this] { ++num_cancels; });
      std::lock_guard lock(mutex_);
      held_ = std::move(exchange);
      return;
    }
    exchange->respond({.content_type = "text/plain",
                       .body = request.method + " " + request.path + " " + request.body});
  }

  std::shared_ptr<Exchange> wait_for_held() {
    for (;;) {
      {
        std::lock_guard lock(mutex_);
        if (held_) return std::exchange(held_, nullptr);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  bool wait_for_cancel() {
    for (int i = 0; i < 5000 && num_cancels == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return num_cancels == 1;
  }

  std::atomic<int> num_cancels = 0;

 private:
  std::mutex mutex_;
  std::shared_ptr<Exchange> held_;
};

class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override { start({}); }

  void start(HttpServerOptions options) {
    options.host = "127.0.0.1";
    options.port = 0;
    server_ = HttpServer::listen(options).value();
    server_->start(handler_);
  }

  EchoHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, KeepsTheConnectionForFurtherRequests) {
  HttpClient client(server_->port());
  EXPECT_EQ(client.get("/a?x=1").body, "GET /a ");
  EXPECT_EQ(client.post("/b", "body").body, "POST /b body");
  client.send("GET /c HTTP/1.1\r\n\r\nGET /d HTTP/1.1\r\n\r\n");  // pipelined
  EXPECT_EQ(client.read_response().body, "GET /c ");
  EXPECT_EQ(client.read_response().body, "GET /d ");
}

TEST_F(HttpServerTest, StreamsInChunks) {
  HttpClient client(server_->port());
  const ClientResponse response = client.get("/stream");
  EXPECT_EQ(response.body, "onetwo");
  EXPECT_EQ(response.headers.at("transfer-encoding"), "chunked");
  EXPECT_EQ(response.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(client.get("/after").body, "GET /after ");
}

TEST_F(HttpServerTest, Http10GetsNoChunksAndAClose) {
  HttpClient client(server_->port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const ClientResponse response = client.read_response();
  EXPECT_EQ(response.body, "onetwo");
  EXPECT_FALSE(response.headers.contains("transfer-encoding"));
}

TEST_F(HttpServerTest, ConnectionCloseIsHonoured) {
  HttpClient client(server_->port());
  EXPECT_EQ(client.get("/a", "Connection: close\r\n").headers.at("connection"), "close");
  EXPECT_EQ(client.read_response().status, 0);
}

TEST_F(HttpServerTest, ExpectContinue) {
  HttpClient client(server_->port());
  client.send("POST /a HTTP/1.1\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(client.read_until("100 Continue"));
  client.send("hi");
  EXPECT_EQ(client.read_response().body, "POST /a hi");
}

TEST_F(HttpServerTest, LeavingWhileWaitingCancels) {
  HttpClient client(server_->port());
  client.send("GET /hold HTTP/1.1\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = handler_.wait_for_held();
  client.close();
  EXPECT_TRUE(handler_.wait_for_cancel());
}

TEST_F(HttpServerTest, LeavingWithinAStreamCancels) {
  HttpClient client(server_->port());
  client.send("GET /hold HTTP/1.1\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = handler_.wait_for_held();
  exchange->write("first");
  ASSERT_TRUE(client.read_until("first"));
  client.close();
  EXPECT_TRUE(handler_.wait_for_cancel());
}

TEST_F(HttpServerTest, ARequestThatComesWithinAStreamWaitsItsTurn) {
  HttpClient client(server_->port());
  client.send("GET /hold HTTP/1.1\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = handler_.wait_for_held();
  exchange->write("first");
  ASSERT_TRUE(client.read_until("first"));
  client.send("GET /next HTTP/1.1\r\n\r\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  exchange->write("second");
  exchange->end();
  EXPECT_EQ(client.read_response().body, "firstsecond");
  EXPECT_EQ(client.read_response().body, "GET /next ");
  EXPECT_EQ(handler_.num_cancels, 0);
}

TEST_F(HttpServerTest, SlowClientIsCutOff) {
  start({.max_buffered_bytes = 1 << 20});
  HttpClient client(server_->port());
  client.send("GET /hold HTTP/1.1\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = handler_.wait_for_held();
  const std::string part(256 << 10, 'x');
  for (int i = 0; i < 2000 && handler_.num_cancels == 0; ++i) {
    exchange->write(part);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(handler_.wait_for_cancel());
}

TEST_F(HttpServerTest, TooLargeBodyIs413) {
  start({.max_body_bytes = 1000});
  HttpClient announced(server_->port());
  announced.send("POST /a HTTP/1.1\r\nContent-Length: 1001\r\n\r\n");
  EXPECT_EQ(announced.read_response().status, 413);
  HttpClient chunked(server_->port());
  chunked.send("POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n" +
               std::string(0x800, 'x') + "\r\n");
  EXPECT_EQ(chunked.read_response().status, 413);
  EXPECT_EQ(HttpClient(server_->port()).post("/a", std::string(1000, 'x')).status, 200);
}

TEST_F(HttpServerTest, TooLargeHeaderIs431AndNoiseIs400) {
  HttpClient large(server_->port());
  EXPECT_EQ(large.get("/a", "X: " + std::string(100000, 'x') + "\r\n").status, 431);
  HttpClient noise(server_->port());
  noise.send("what is this\r\n\r\n");
  EXPECT_EQ(noise.read_response().status, 400);
  EXPECT_EQ(HttpClient(server_->port()).get("/a").status, 200);
}

TEST_F(HttpServerTest, SilentClientIsDropped) {
  start({.request_timeout_s = 1});
  HttpClient client(server_->port());
  client.send("POST /a HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(client.read_response().status, 0);  // closed after a second, not after the client's 20
}

TEST_F(HttpServerTest, ConnectionsBeyondTheLimitAreTurnedAway) {
  start({.max_connections = 2});
  HttpClient first(server_->port());
  HttpClient second(server_->port());
  EXPECT_EQ(first.get("/a").status, 200);
  EXPECT_EQ(second.get("/a").status, 200);
  HttpClient third(server_->port());
  EXPECT_EQ(third.read_response().status, 503);
  first.close();
  for (int i = 0; i < 100; ++i) {
    HttpClient again(server_->port());
    if (again.get("/a").status == 200) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  FAIL() << "the freed place was not given away";
}

TEST_F(HttpServerTest, DrainFinishesWhatRunsAndTakesNoMore) {
  HttpClient client(server_->port());
  client.send("GET /hold HTTP/1.1\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = handler_.wait_for_held();
  server_->stop_accepting();
  EXPECT_FALSE(server_->wait_until_idle(10'000'000));
  exchange->respond({.body = "done"});
  const ClientResponse response = client.read_response();
  EXPECT_EQ(response.body, "done");
  EXPECT_TRUE(server_->wait_until_idle(5'000'000'000));
}

TEST_F(HttpServerTest, PortInUseIsNamed) {
  const auto second = HttpServer::listen({.host = "127.0.0.1", .port = server_->port()});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  EXPECT_NE(second.error().message.find(std::to_string(server_->port())), std::string::npos);
  EXPECT_FALSE(HttpServer::listen({.host = "no such host", .port = 0}).ok());
}

}  // namespace
}  // namespace medley::server
