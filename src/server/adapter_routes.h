#pragma once

#include <string>
#include <vector>

#include "server/adapter_admin.h"
#include "server/route_group.h"
#include "server/side_workers.h"

namespace medley::server {

// vLLM's POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with its bodies and the text of
// its answers; GET /v1/adapters; POST /v1/adapters/NAME/pin and /unpin.
class AdapterRoutes : public RouteGroup {
 public:
  // `base_names` can't be given to adapters. `admin` outlives this.
  AdapterRoutes(AdapterAdmin& admin, int max_on_device, std::vector<std::string> base_names);

  std::string_view method_of(std::string_view path) const override;
  void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;

 private:
  HttpResponse answer(const HttpRequest& request);
  Result<HttpResponse> load(const HttpRequest& request);
  Result<HttpResponse> unload(const HttpRequest& request);
  Result<HttpResponse> pin(const HttpRequest& request);

  AdapterAdmin& admin_;
  const int max_on_device_;
  const std::vector<std::string> base_names_;
  SideWorkers workers_;
};

}  // namespace medley::server
