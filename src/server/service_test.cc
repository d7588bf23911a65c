#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include <nlohmann/json.hpp>

#include "server/generation_service.h"
#include "server/http_server.h"
#include "server/router.h"
#include "server/testing/fake_engine.h"
#include "server/testing/http_client.h"

namespace medley::server {
namespace {

using nlohmann::json;
using testing::ClientResponse;
using testing::FakeEngine;
using testing::HttpClient;

class OneAdapter : public AdapterDirectory {
 public:
  Result<void> resolve(const std::string& name) override {
    if (name == "backwards") return {};
    return not_found("no adapter of this name");
  }
  std::vector<api::ModelCard> list() const override {
    return {{.id = "backwards", .root = "/adapters/b", .rank = 4, .state = "on_device"}};
  }
  int max_on_device() const override { return 8; }
};

// The whole server over a real socket and tokenizer, with an engine that echoes the prompt.
class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest()
      : tokenizer_(
            text::TextTokenizer::load(std::string(std::getenv("MEDLEY_SOURCE_DIR")) + "/demo/model")
                .value()),
        chat_(text::ChatRenderer::create(tokenizer_.config()).value()) {
    start({}, {});
  }

  ~ServiceTest() override { stop(); }

  void stop() {
    if (http_) http_->stop();
    service_.reset();
    engine_.reset();
    router_.reset();
    outputs_.reset();
    http_.reset();
  }

  void start(FakeEngine::Options engine_options, const std::string& api_key) {
    stop();
    http_ = HttpServer::listen({.host = "127.0.0.1", .port = 0}).value();
    metrics_ = std::make_unique<Metrics>("base");
    outputs_ = std::make_unique<OutputWorkers>(tokenizer_.pieces(), *metrics_, 2);
    engine_ = std::make_unique<FakeEngine>(engine_options, outputs_->sink());
    outputs_->set_engine(*engine_);
    service_ = std::make_unique<GenerationService>(
        GenerationServiceOptions{.base_names = {"base", "alias"},
                                 .vocab_size = static_cast<int64_t>(tokenizer_.vocab_size()),
                                 .max_model_len = 4096,
                                 .defaults = {.temperature = 0.25f}},
        GenerationServiceParts{tokenizer_, chat_, adapters_, *outputs_, *engine_});
    router_ = std::make_unique<Router>(
        RouterOptions{.base_names = {"base", "alias"}, .max_model_len = 4096, .api_key = api_key},
        RouterParts{*service_, adapters_, *engine_, *metrics_});
    router_->set_ready(true);
    http_->start(*router_);
  }

  HttpClient client() { return HttpClient(http_->port()); }

  json complete(const json& body) {
    HttpClient http(http_->port());
    const ClientResponse response = http.post("/v1/completions", body.dump());
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body);
  }

  // The data of each event, [DONE] checked and left out.
  std::vector<json> stream(const std::string& path, json body) {
    body["stream"] = true;
    HttpClient http(http_->port());
    const ClientResponse response = http.post(path, body.dump());
    EXPECT_EQ(response.status, 200) << response.body;
    std::vector<json> events;
    size_t at = 0;
    while (at < response.body.size()) {
      const size_t end = response.body.find("\n\n", at);
      const std::string event = response.body.substr(at, end - at);
      EXPECT_TRUE(event.starts_with("data: ")) << event;
      at = end + 2;
      if (event == "data: [DONE]") {
        EXPECT_EQ(at, response.body.size());
        return events;
      }
      events.push_back(json::parse(event.substr(6)));
    }
    ADD_FAILURE() << "no [DONE]";
    return events;
  }

  std::vector<int32_t> encode(const std::string& text) {
    return tokenizer_.encode(text, /*add_special_tokens=*/true).value();
  }

  const text::TextTokenizer tokenizer_;
  const text::ChatRenderer chat_;
  OneAdapter adapters_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<OutputWorkers> outputs_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<GenerationService> service_;
  std::unique_ptr<Router> router_;
};

const std::string kText = "The printer on the second floor is broken again.";

TEST_F(ServiceTest, CompletionEchoesThePrompt) {
  const int num_tokens = static_cast<int>(encode(kText).size());
  const json answer = complete({{"prompt", kText}, {"max_tokens", num_tokens}});
  EXPECT_EQ(answer["choices"][0]["text"], kText);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["model"], "base");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], num_tokens);
  EXPECT_EQ(answer["usage"]["completion_tokens"], num_tokens);
  EXPECT_EQ(answer["usage"]["total_tokens"], 2 * num_tokens);
}

TEST_F(ServiceTest, StreamIsTheSameText) {
  const int num_tokens = static_cast<int>(encode(kText).size());
  std::string text;
  const std::vector<json> events =
      stream("/v1/completions", {{"prompt", kText},
                                 {"max_tokens", num_tokens},
                                 {"stream_options", {{"include_usage", true}}}});
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(events[i]["object"], "text_completion");
    text += events[i]["choices"][0]["text"];
  }
  EXPECT_EQ(text, kText);
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], num_tokens);
}

TEST_F(ServiceTest, AdapterIsWhatTheModelNames) {
  const std::vector<int32_t> ids = encode(kText);
  json body{{"prompt", ids}, {"max_tokens", ids.size()}, {"return_token_ids", true}};
  body["model"] = "backwards";
  const json answer = complete(body);
  EXPECT_EQ(answer["choices"][0]["token_ids"], std::vector<int32_t>(ids.rbegin(), ids.rend()));
  EXPECT_EQ(answer["choices"][0]["prompt_token_ids"], ids);
  EXPECT_EQ(answer["model"], "backwards");
  body["model"] = "alias";
  EXPECT_EQ(complete(body)["choices"][0]["token_ids"], ids);
  body["model"] = "nobody";
  const ClientResponse refused = client().post("/v1/completions", body.dump());
  EXPECT_EQ(refused.status, 404);
  EXPECT_NE(refused.body.find("`nobody`"), std::string::npos);
}

TEST_F(ServiceTest, ChatStreamOpensWithTheRole) {
  const std::vector<json> events =
      stream("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", kText}}}},
                                      {"max_tokens", 12},
                                      {"return_token_ids", true}});
  EXPECT_EQ(events.front()["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events.front()["object"], "chat.completion.chunk");
  const std::vector<int32_t> prompt = events.front()["prompt_token_ids"];
  EXPECT_EQ(tokenizer_.decode(prompt, false).value(), "<|user|>" + kText + "<|end|><|assistant|>");
  std::vector<int32_t> ids;
  for (size_t i = 1; i < events.size(); ++i) {
    EXPECT_FALSE(events[i].contains("prompt_token_ids"));
    const std::vector<int32_t> part = events[i]["choices"][0]["token_ids"];
    ids.insert(ids.end(), part.begin(), part.end());
  }
  EXPECT_EQ(ids, std::vector<int32_t>(prompt.begin(), prompt.begin() + 12));
}

TEST_F(ServiceTest, StopStringEndsTheAnswerAndTheWork) {
  json body{{"prompt", kText}, {"max_tokens", 4000}, {"stop", {"never", " floor"}}};
  json answer = complete(body);
  EXPECT_EQ(answer["choices"][0]["text"], "The printer on the second");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][0]["stop_reason"], " floor");
  EXPECT_LT(answer["usage"]["completion_tokens"], 4000);
  EXPECT_TRUE(engine_->wait_until_idle());
  body["include_stop_str_in_output"] = true;
  EXPECT_EQ(complete(body)["choices"][0]["text"], "The printer on the second floor");
}

TEST_F(ServiceTest, MinTokensLetsEarlyStopsPass) {
  const int num_tokens = static_cast<int>(encode(kText).size());
  const json answer = complete(
      {{"prompt", kText}, {"max_tokens", 4000}, {"stop", " floor"}, {"min_tokens", num_tokens}});
  EXPECT_EQ(answer["choices"][0]["text"], kText + "The printer on the second");
}

TEST_F(ServiceTest, StopTokenIsNotInTheTextButCounted) {
  const std::vector<int32_t> ids = encode(kText);
  const json answer = complete({{"prompt", ids},
                                {"max_tokens", 4000},
                                {"stop_token_ids", {ids[3]}},
                                {"return_token_ids", true}});
  EXPECT_EQ(answer["choices"][0]["stop_reason"], ids[3]);
  EXPECT_EQ(answer["choices"][0]["token_ids"], std::vector<int32_t>(ids.begin(), ids.begin() + 4));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 4);
  EXPECT_EQ(answer["choices"][0]["text"],
            tokenizer_.decode(std::vector<int32_t>(ids.begin(), ids.begin() + 3), true).value());
}

TEST_F(ServiceTest, SeveralPromptsAndChoices) {
  const json answer = complete(
      {{"prompt", {"one two", "three four"}}, {"n", 2}, {"max_tokens", 1}, {"echo", true}});
  ASSERT_EQ(answer["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_TRUE(answer["choices"][i]["text"].get<std::string>().starts_with(i < 2 ? "one two"
                                                                                  : "three four"));
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"],
            encode("one two").size() + encode("three four").size());
  EXPECT_EQ(answer["usage"]["completion_tokens"], 4);
}

TEST_F(ServiceTest, LogprobsHaveBothShapes) {
  const json old = complete({{"prompt", kText}, {"max_tokens", 3}, {"logprobs", 2}});
  const json& logprobs = old["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"].size(), 3u);
  EXPECT_EQ(logprobs["token_logprobs"], (std::vector<double>{-0.5, -0.5, -0.5}));
  EXPECT_EQ(logprobs["text_offset"][1], logprobs["tokens"][0].get<std::string>().size());
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 2u);
  const ClientResponse chat = client().post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"logprobs":true,)"
      R"("top_logprobs":3})");
  const json content = json::parse(chat.body)["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["token"], "<|user|>");
  EXPECT_EQ(content[0]["top_logprobs"].size(), 3u);
}

TEST_F(ServiceTest, EchoedLogprobsCoverPromptAndAnswer) {
  const std::vector<int32_t> ids = encode(kText);
  const json body = {{"prompt", kText}, {"max_tokens", 2}, {"logprobs", 1}, {"echo", true}};
  const json choice = complete(body)["choices"][0];
  const json& logprobs = choice["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), ids.size() + 2);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  std::string text;
  for (size_t i = 0; i < ids.size() + 2; ++i) {
    const std::string token = logprobs["tokens"][i];
    EXPECT_EQ(logprobs["text_offset"][i], text.size());
    text += token;
    if (i == 0) continue;
    EXPECT_EQ(logprobs["token_logprobs"][i],
              i < ids.size() ? -0.25 * static_cast<double>(i) : -0.5);
    EXPECT_TRUE(logprobs["top_logprobs"][i].contains(token));
  }
  EXPECT_EQ(choice["text"], text);
  // A stream is the same in pieces.
  json streamed = {{"tokens", json::array()}, {"token_logprobs", json::array()}};
  std::string streamed_text;
  for (const json& event : stream("/v1/completions", body)) {
    const json& part = event["choices"][0];
    streamed_text += part["text"];
    for (const char* list : {"tokens", "token_logprobs"}) {
      for (const json& value : part["logprobs"][list]) streamed[list].push_back(value);
    }
  }
  EXPECT_EQ(streamed_text, text);
  EXPECT_EQ(streamed["tokens"], logprobs["tokens"]);
  EXPECT_EQ(streamed["token_logprobs"], logprobs["token_logprobs"]);
}

TEST_F(ServiceTest, EchoAloneIsThePrompt) {
  const json answer = complete({{"prompt", "one two"},
                                {"max_tokens", 0},
                                {"logprobs", 0},
                                {"echo", true},
                                {"return_token_ids", true}});
  const json& choice = answer["choices"][0];
  EXPECT_EQ(choice["text"], "one two");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["token_ids"], json::array());
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), encode("one two").size());
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
}

TEST_F(ServiceTest, PromptLogprobs) {
  const std::vector<int32_t> ids = encode(kText);
  const json answer = complete(
      {{"prompt", kText}, {"n", 2}, {"max_tokens", 1}, {"prompt_logprobs", 1}, {"logprobs", 3}});
  ASSERT_EQ(answer["choices"].size(), 2u);
  for (const json& choice : answer["choices"]) {
    ASSERT_EQ(choice["prompt_logprobs"].size(), ids.size());
    EXPECT_EQ(choice["logprobs"]["tokens"].size(), 1u);
    EXPECT_TRUE(choice["prompt_logprobs"][0].is_null());
    for (size_t i = 1; i < ids.size(); ++i) {
      const json& entries = choice["prompt_logprobs"][i];
      EXPECT_EQ(entries.size(), 2u);
      const json& token = entries[std::to_string(ids[i])];
      EXPECT_EQ(token["logprob"], -0.25 * static_cast<double>(i));
      EXPECT_EQ(token["rank"], i + 1);
      EXPECT_EQ(token["decoded_token"],
                std::string(tokenizer_.pieces().bytes(static_cast<uint32_t>(ids[i]))));
      EXPECT_EQ(entries[std::to_string(ids[i] + 1)]["rank"], 1);
    }
  }
  const ClientResponse chat = client().post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"prompt_logprobs":0})");
  const json body = json::parse(chat.body);
  EXPECT_EQ(body["prompt_logprobs"].size(), body["usage"]["prompt_tokens"]);
  EXPECT_EQ(body["prompt_logprobs"][1].size(), 1u);
  // One token: nothing is scored.
  EXPECT_EQ(complete({{"prompt", {5}}, {"prompt_logprobs", 0}})["choices"][0]["prompt_logprobs"],
            json::array({nullptr}));
}

TEST_F(ServiceTest, SamplingFieldsReachTheEngine) {
  complete({{"prompt", "a"},
            {"repetition_penalty", 1.5},
            {"frequency_penalty", 0.5},
            {"presence_penalty", -0.25},
            {"logit_bias", {{"5", 2}}},
            {"min_tokens", 3},
            {"ignore_eos", true}});
  const SamplingParams sampling = engine_->last_request().sampling;
  EXPECT_EQ(sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(sampling.frequency_penalty, 0.5f);
  EXPECT_EQ(sampling.presence_penalty, -0.25f);
  ASSERT_EQ(sampling.logit_bias.size(), 1u);
  EXPECT_EQ(sampling.logit_bias[0].token_id, 5);
  EXPECT_EQ(sampling.logit_bias[0].bias, 2.0f);
  EXPECT_EQ(sampling.min_tokens, 3);
  EXPECT_TRUE(sampling.ignore_eos);
  const int64_t vocab_size = static_cast<int64_t>(tokenizer_.vocab_size());
  const ClientResponse refused = client().post(
      "/v1/completions",
      json{{"prompt", "a"}, {"logit_bias", {{std::to_string(vocab_size), 1}}}}.dump());
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json::parse(refused.body)["error"]["message"],
            fmt::format("`logit_bias` has token id {}; the vocabulary ends at {}", vocab_size,
                        vocab_size - 1));
}

TEST_F(ServiceTest, DefaultsAndSeeds) {
  complete({{"prompt", "a"}, {"max_tokens", 1}});
  const uint64_t first = engine_->last_request().sampling.seed;
  EXPECT_EQ(engine_->last_request().sampling.temperature, 0.25f);
  complete({{"prompt", "a"}, {"max_tokens", 1}, {"temperature", 0}});
  EXPECT_NE(engine_->last_request().sampling.seed, first);
  EXPECT_EQ(engine_->last_request().sampling.temperature, 0.0f);
  complete({{"prompt", "a"}, {"max_tokens", 1}, {"seed", 42}});
  EXPECT_EQ(engine_->last_request().sampling.seed, 42u);
}

TEST_F(ServiceTest, ClientsMistakes) {
  const auto status = [&](const std::string& body) {
    return client().post("/v1/completions", body).status;
  };
  EXPECT_EQ(status("{"), 400);
  EXPECT_EQ(status(""), 400);
  EXPECT_EQ(status(R"({"prompt":""})"), 400);
  EXPECT_EQ(status(R"({"prompt":[99999999]})"), 400);
  EXPECT_EQ(status(R"({"prompt":"a","max_tokens":4096})"), 400);
  EXPECT_EQ(status(R"({"prompt":"a","tools":[{}]})"), 400);
  const ClientResponse role =
      client().post("/v1/chat/completions", R"({"messages":[{"role":"wizard","content":"a"}]})");
  EXPECT_EQ(role.status, 400);
  EXPECT_NE(role.body.find("unknown role"), std::string::npos) << role.body;
}

TEST_F(ServiceTest, Routes) {
  HttpClient http(http_->port());
  EXPECT_EQ(http.get("/health").status, 200);
  EXPECT_EQ(http.get("/ping").status, 200);
  EXPECT_EQ(http.get("/ready").status, 200);
  EXPECT_EQ(http.get("/nothing").status, 404);
  const ClientResponse wrong_method = http.get("/v1/completions");
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_EQ(wrong_method.headers.at("allow"), "POST");
  EXPECT_TRUE(json::parse(http.get("/version").body).contains("version"));
  EXPECT_NE(http.get("/").body.find("</html>"), std::string::npos);
  const json models = json::parse(http.get("/v1/models").body)["data"];
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models[0]["id"], "base");
  EXPECT_EQ(models[2]["id"], "backwards");
  EXPECT_EQ(models[2]["parent"], "base");
  EXPECT_EQ(models[2]["medley"]["rank"], 4);
  EXPECT_EQ(json::parse(http.get("/v1/models/backwards").body)["id"], "backwards");
  EXPECT_EQ(http.get("/v1/models/nobody").status, 404);
  EXPECT_NE(http.get("/metrics").body.find("running_lora_adapters=\"backwards\""),
            std::string::npos);
  router_->set_ready(false);
  EXPECT_EQ(http.get("/ready").status, 503);
}

TEST_F(ServiceTest, ApiKeyGuardsV1) {
  start({}, "secret");
  HttpClient http(http_->port());
  EXPECT_EQ(http.get("/v1/models").status, 401);
  EXPECT_EQ(http.get("/v1/models", "Authorization: Bearer secre\r\n").status, 401);
  EXPECT_EQ(http.get("/v1/models", "Authorization: Bearer secretsecret\r\n").status, 401);
  EXPECT_EQ(http.get("/v1/models", "Authorization: Bearer \r\n").status, 401);
  EXPECT_EQ(http.post("/v1/completions", R"({"prompt":"a"})").status, 401);
  EXPECT_EQ(http.get("/v1/models", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(http.get("/health").status, 200);
}

TEST_F(ServiceTest, LeavingClientFreesItsWork) {
  start({.step_ns = 1'000'000}, {});
  for (const bool streamed : {false, true}) {
    HttpClient http(http_->port());
    const std::string body =
        json{{"prompt", "a b"}, {"max_tokens", 4000}, {"n", 3}, {"stream", streamed}}.dump();
    http.send(fmt::format("POST /v1/completions HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}",
                          body.size(), body));
    for (int i = 0; i < 5000 && engine_->stats().num_running < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_EQ(engine_->stats().num_running, 3);
    http.close();
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(engine_->wait_until_idle());
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  }
  // The engine is idle before the output worker has counted the last ends.
  std::string metrics;
  const auto counted = [&] {
    return metrics.find("finished_reason=\"abort\",model_name=\"base\"} 6") != std::string::npos;
  };
  for (int i = 0; i < 1000 && !counted(); ++i) metrics = client().get("/metrics").body;
  EXPECT_TRUE(counted()) << metrics;
}

TEST_F(ServiceTest, FullQueueIs429WithRetryAfter) {
  start({.max_running = 1}, {});
  const ClientResponse refused =
      client().post("/v1/completions", R"({"prompt":"a","n":2,"max_tokens":4000})");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_TRUE(engine_->wait_until_idle());  // the choice that was taken is not left running
}

TEST_F(ServiceTest, EngineFailureWithinAStreamIsSaid) {
  start({.step_ns = 1'000'000}, {});
  HttpClient http(http_->port());
  const std::string body = R"({"prompt":"a b c","max_tokens":4000,"stream":true})";
  http.send(fmt::format("POST /v1/completions HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}",
                        body.size(), body));
  ASSERT_TRUE(http.read_until("data: {\"id\""));
  engine_->break_all();
  const ClientResponse response = http.read_response();
  EXPECT_NE(response.body.find("the device failed"), std::string::npos);
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(ServiceTest, ManyStreamsAtOnceEachGetTheirOwn) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 32; ++i) {
    threads.emplace_back([this, i] {
      const std::string text = fmt::format("Ticket number {} is about the colour {}.", i, i * 7);
      const int num_tokens = static_cast<int>(encode(text).size());
      std::string got;
      for (const json& event :
           stream("/v1/completions", {{"prompt", text}, {"max_tokens", num_tokens}})) {
        got += event["choices"][0]["text"];
      }
      EXPECT_EQ(got, text);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ServiceTest, AThousandIdleConnectionsDoNotMatter) {
  std::vector<std::unique_ptr<HttpClient>> idle;
  for (int i = 0; i < 1000; ++i) idle.push_back(std::make_unique<HttpClient>(http_->port()));
  EXPECT_EQ(complete({{"prompt", "a"}, {"max_tokens", 1}})["usage"]["completion_tokens"], 1);
  EXPECT_EQ(idle.front()->get("/health").status, 200);
  EXPECT_EQ(idle.back()->get("/health").status, 200);
}

}  // namespace
}  // namespace medley::server
