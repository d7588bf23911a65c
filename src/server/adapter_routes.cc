#include "server/adapter_routes.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "server/replies.h"

namespace medley::server {
namespace {

constexpr std::string_view kLoad = "/v1/load_lora_adapter";
constexpr std::string_view kUnload = "/v1/unload_lora_adapter";
constexpr std::string_view kList = "/v1/adapters";
constexpr std::string_view kPrefix = "/v1/adapters/";
constexpr std::string_view kPin = "/pin";
constexpr std::string_view kUnpin = "/unpin";
constexpr int kNumWorkers = 2;
constexpr size_t kMaxWaiting = 64;

bool is_pin_path(std::string_view path) {
  return path.starts_with(kPrefix) && (path.ends_with(kPin) || path.ends_with(kUnpin));
}

// RFC 3986, 2.1: clients may write a name's '/', ':' and '@' as %2F, %3A and %40.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    if (text[i] == '%' && i + 2 < text.size()) {
      const char* const end = text.data() + i + 3;
      const auto [stop, error] = std::from_chars(text.data() + i + 1, end, byte, 16);
      if (error == std::errc() && stop == end) {
        decoded += static_cast<char>(byte);
        i += 2;
        continue;
      }
    }
    decoded += text[i];
  }
  return decoded;
}

HttpResponse success(const std::string& name, std::string_view done) {
  return {.content_type = "text/plain; charset=utf-8",
          .body = fmt::format("Success: LoRA adapter '{}' {} successfully.", name, done)};
}

}  // namespace

AdapterRoutes::AdapterRoutes(AdapterAdmin& admin, int max_on_device,
                             std::vector<std::string> base_names)
    : admin_(admin),
      max_on_device_(max_on_device),
      base_names_(std::move(base_names)),
      workers_(kNumWorkers, kMaxWaiting) {}

std::string_view AdapterRoutes::method_of(std::string_view path) const {
  if (path == kLoad || path == kUnload || is_pin_path(path)) return "POST";
  return path == kList ? "GET" : "";
}

void AdapterRoutes::handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  workers_.submit([this, request = std::move(request)] { return answer(request); },
                  std::move(exchange));
}

HttpResponse AdapterRoutes::answer(const HttpRequest& request) {
  if (request.path == kList) {
    return {.body = api::render_adapters(admin_.statuses(), max_on_device_)};
  }
  Result<HttpResponse> response = request.path == kLoad     ? load(request)
                                  : request.path == kUnload ? unload(request)
                                                            : pin(request);
  return response.ok() ? std::move(*response) : error_reply(response.error());
}

Result<HttpResponse> AdapterRoutes::load(const HttpRequest& request) {
  MEDLEY_TRY_ASSIGN(const api::LoadAdapterRequest wanted, api::parse_load_adapter(request.body));
  if (wanted.dry_run) {
    MEDLEY_TRY_ASSIGN(const api::AdapterStatus found, admin_.check(wanted.path));
    return HttpResponse{.body = api::render_dry_run(found)};
  }
  if (std::ranges::find(base_names_, wanted.name) != base_names_.end()) {
    return invalid_argument(fmt::format("'{}' is the base model's name", wanted.name), "lora_name");
  }
  MEDLEY_TRY(admin_.load(wanted));
  return success(wanted.name, "added");
}

Result<HttpResponse> AdapterRoutes::unload(const HttpRequest& request) {
  MEDLEY_TRY_ASSIGN(const std::string name, api::parse_unload_adapter(request.body));
  MEDLEY_TRY(admin_.unload(name));
  return success(name, "removed");
}

Result<HttpResponse> AdapterRoutes::pin(const HttpRequest& request) {
  std::string_view name = request.path;
  const bool pinned = name.ends_with(kPin);
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(std::min(name.size(), (pinned ? kPin : kUnpin).size()));
  const std::string decoded = percent_decoded(name);
  MEDLEY_TRY(admin_.set_pinned(decoded, pinned));
  return success(decoded, pinned ? "pinned" : "unpinned");
}

}  // namespace medley::server
