#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/adapter_directory.h"
#include "server/generation_service.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/route_group.h"

namespace medley::server {

struct RouterOptions {
  std::vector<std::string> base_names;
  std::string model_root;  // where the base model's files are
  int64_t max_model_len = 0;
  std::string api_key;  // empty: none needed. Guards everything below /v1
};

struct RouterParts {
  GenerationService& generation;
  AdapterDirectory& adapters;
  Engine& engine;
  Metrics& metrics;
  std::vector<RouteGroup*> groups = {};  // further routes
};

// Which path and method does what. Thread-safe.
class Router : public HttpHandler {
 public:
  Router(RouterOptions options, const RouterParts& parts);

  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;

  // /ready answers 200 while this is set.
  void set_ready(bool ready) { ready_ = ready; }

 private:
  using Handler = HttpResponse (Router::*)(const HttpRequest&);
  struct Route {
    const char* method;
    const char* path;
    Handler handler;  // null: a generation
  };
  static const std::vector<Route>& routes();

  bool authorized(const HttpRequest& request) const;
  HttpResponse get_page(const HttpRequest& request);
  HttpResponse get_models(const HttpRequest& request);
  HttpResponse get_model(const std::string& id);
  HttpResponse get_health(const HttpRequest& request);
  HttpResponse get_ready(const HttpRequest& request);
  HttpResponse get_load(const HttpRequest& request);
  HttpResponse get_version(const HttpRequest& request);
  HttpResponse get_metrics(const HttpRequest& request);
  std::vector<api::ModelCard> model_cards() const;

  const RouterOptions options_;
  const RouterParts parts_;
  const int64_t created_;  // seconds since the epoch
  std::atomic<bool> ready_ = false;
};

}  // namespace medley::server
