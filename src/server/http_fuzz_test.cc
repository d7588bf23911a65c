#include <gtest/gtest.h>

#include <random>

#include "server/http_server.h"
#include "server/testing/http_client.h"

namespace medley::server {
namespace {

using testing::HttpClient;

class LengthHandler : public HttpHandler {
 public:
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override {
    exchange->respond({.body = std::to_string(request.body.size())});
  }
};

const std::vector<std::string> kSeeds = {
    "GET /a?b=c HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\n\r\n",
    "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nT: v\r\n\r\n",
    "POST /a HTTP/1.0\r\nConnection: keep-alive\r\nExpect: 100-continue\r\nContent-Length: "
    "1\r\n\r\nx"};

const std::vector<std::string> kTokens = {"\r\n",
                                          "\n",
                                          "\r\n\r\n",
                                          ":",
                                          std::string(1, '\0'),
                                          "Content-Length: 99999999999\r\n",
                                          "-1",
                                          "ffffff",
                                          " ",
                                          "chunked",
                                          "HTTP/9.9",
                                          "Content-Length: 3\r\n"};

std::string mutate(std::string text, std::mt19937_64& random) {
  const int num_changes = static_cast<int>(random() % 5);
  for (int i = 0; i < num_changes && !text.empty(); ++i) {
    const size_t at = random() % text.size();
    switch (random() % 4) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + random() % 16);
        break;
      case 2:
        text.insert(at, kTokens[random() % kTokens.size()]);
        break;
      case 3:
        text.insert(at, text.substr(random() % text.size(), random() % 64));
        break;
    }
  }
  return text;
}

// Whatever clients send, and whenever they leave: the server goes on, and nothing of them is left.
TEST(HttpFuzz, MutatedRequests) {
  LengthHandler handler;
  const auto server =
      HttpServer::listen({.host = "127.0.0.1", .port = 0, .max_body_bytes = 1 << 16}).value();
  server->start(handler);
  std::mt19937_64 random(2);
  for (int round = 0; round < 3000; ++round) {
    HttpClient client(server->port());
    const std::string bytes = mutate(kSeeds[random() % kSeeds.size()], random);
    const size_t cut = random() % (bytes.size() + 1);
    client.send(bytes.substr(0, cut));
    client.send(bytes.substr(cut));
    if (random() % 2 == 0) client.read_available();
  }
  HttpClient client(server->port());
  EXPECT_EQ(client.post("/a", "hello").body, "5");
  EXPECT_TRUE(server->wait_until_idle(10'000'000'000));
}

}  // namespace
}  // namespace medley::server
