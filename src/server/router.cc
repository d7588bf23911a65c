#include "server/router.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "api/models.h"
#include "server/page.h"
#include "server/replies.h"

namespace medley::server {
namespace {

constexpr std::string_view kModelsPrefix = "/v1/models/";

// The time depends on the length of what the client sent alone.
bool equal_in_constant_time(std::string_view sent, std::string_view secret) {
  unsigned difference = sent.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < sent.size(); ++i) {
    difference |=
        static_cast<unsigned char>(sent[i]) ^ static_cast<unsigned char>(secret[i % secret.size()]);
  }
  return difference == 0;
}

}  // namespace

Router::Router(RouterOptions options, const RouterParts& parts)
    : options_(std::move(options)),
      parts_(parts),
      created_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()) {}

const std::vector<Router::Route>& Router::routes() {
  static const std::vector<Route> table = {
      {"POST", "/v1/chat/completions", nullptr},
      {"POST", "/v1/completions", nullptr},
      {"GET", "/v1/models", &Router::get_models},
      {"GET", "/health", &Router::get_health},
      {"GET", "/ping", &Router::get_health},
      {"POST", "/ping", &Router::get_health},
      {"GET", "/ready", &Router::get_ready},
      {"GET", "/version", &Router::get_version},
      {"GET", "/metrics", &Router::get_metrics},
      {"GET", "/load", &Router::get_load},
      {"GET", "/", &Router::get_page},
  };
  return table;
}

void Router::handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  if (request.path.starts_with("/v1") && !authorized(request)) {
    HttpResponse response = error_reply(
        {ErrorCode::kUnauthorized, "this needs the header \"Authorization: Bearer KEY\""});
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return exchange->respond(std::move(response));
  }
  std::string allowed;
  for (const Route& route : routes()) {
    if (request.path != route.path) continue;
    if (request.method != route.method) {
      allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
      continue;
    }
    if (route.handler != nullptr) return exchange->respond((this->*route.handler)(request));
    const api::Shape shape =
        request.path == "/v1/chat/completions" ? api::Shape::kChat : api::Shape::kCompletion;
    return parts_.generation.submit(shape, std::move(request.body), std::move(exchange));
  }
  for (RouteGroup* group : parts_.groups) {
    const std::string_view method = group->method_of(request.path);
    if (method.empty()) continue;
    if (request.method == method) return group->handle(std::move(request), std::move(exchange));
    allowed = method;
  }
  if (request.path.starts_with(kModelsPrefix)) {
    if (request.method == "GET") {
      return exchange->respond(get_model(request.path.substr(kModelsPrefix.size())));
    }
    allowed = "GET";
  }
  if (allowed.empty()) {
    return exchange->respond(
        error_reply(not_found(fmt::format("no route {} {}", request.method, request.path))));
  }
  HttpResponse response =
      error_reply(405, fmt::format("{} takes {}, got {}", request.path, allowed, request.method));
  response.headers.emplace_back("Allow", allowed);
  exchange->respond(std::move(response));
}

bool Router::authorized(const HttpRequest& request) const {
  constexpr std::string_view kScheme = "Bearer ";
  if (options_.api_key.empty()) return true;
  if (!request.authorization.starts_with(kScheme)) return false;
  return equal_in_constant_time(std::string_view(request.authorization).substr(kScheme.size()),
                                options_.api_key);
}

HttpResponse Router::get_page(const HttpRequest&) {
  return {.content_type = "text/html; charset=utf-8", .body = std::string(kPage)};
}

std::vector<api::ModelCard> Router::model_cards() const {
  std::vector<api::ModelCard> cards;
  for (const std::string& name : options_.base_names) {
    cards.push_back({.id = name,
                     .root = options_.model_root,
                     .created = created_,
                     .max_model_len = options_.max_model_len});
  }
  for (api::ModelCard& card : parts_.adapters.list()) {
    card.parent = options_.base_names.front();
    card.created = created_;
    cards.push_back(std::move(card));
  }
  return cards;
}

HttpResponse Router::get_models(const HttpRequest&) {
  return {.body = api::render_models(model_cards())};
}

HttpResponse Router::get_model(const std::string& id) {
  const std::vector<api::ModelCard> cards = model_cards();
  const auto card =
      std::ranges::find_if(cards, [&](const api::ModelCard& c) { return c.id == id; });
  if (card != cards.end()) return {.body = api::render_model(*card)};
  return error_reply(not_found(fmt::format("the model `{}` does not exist", id), "model"));
}

HttpResponse Router::get_health(const HttpRequest&) {
  if (parts_.engine.stats().healthy) return {.content_type = "text/plain"};
  return error_reply({ErrorCode::kUnavailable, "the engine has stopped after a fault"});
}

HttpResponse Router::get_ready(const HttpRequest& request) {
  if (ready_) return get_health(request);
  return error_reply({ErrorCode::kUnavailable, "not ready"});
}

HttpResponse Router::get_load(const HttpRequest&) {
  const EngineStats stats = parts_.engine.stats();
  return {.body = fmt::format(R"({{"server_load":{}}})", stats.num_running + stats.num_waiting)};
}

HttpResponse Router::get_version(const HttpRequest&) {
  return {.body = R"({"version":")" MEDLEY_VERSION R"("})"};
}

HttpResponse Router::get_metrics(const HttpRequest&) {
  const MetricsSnapshot snapshot{.engine = parts_.engine.stats(),
                                 .max_adapters = parts_.adapters.max_on_device(),
                                 .adapters = parts_.adapters.list()};
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = parts_.metrics.render(snapshot)};
}

}  // namespace medley::server
