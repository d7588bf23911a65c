#include "api/adapters.h"

#include "api/json.h"
#include "api/object_reader.h"

namespace medley::api {
namespace {

Result<Json> parse_object(std::string_view body) {
  MEDLEY_TRY_ASSIGN(Json json, parse_json(body));
  if (json.is_object()) return json;
  return invalid_argument(fmt::format("the body must be an object, got {}", kind_of(json)));
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

Result<LoadAdapterRequest> parse_load_adapter(std::string_view body) {
  MEDLEY_TRY_ASSIGN(const Json json, parse_object(body));
  ObjectReader reader(json);
  LoadAdapterRequest request;
  reader.read("lora_name", request.name);
  reader.read("lora_path", request.path);
  reader.read("load_inplace", request.in_place);
  reader.read("dry_run", request.dry_run);
  reader.read("pin", request.pin);
  reader.read("preload", request.preload);
  if (reader.error()) return *reader.error();
  if (request.path.empty() || (request.name.empty() && !request.dry_run)) {
    return invalid_argument("Both 'lora_name' and 'lora_path' must be provided.",
                            request.path.empty() ? "lora_path" : "lora_name");
  }
  if (request.path.find('\0') != std::string::npos) {
    return invalid_argument("`lora_path` must not hold a zero byte", "lora_path");
  }
  return request;
}

Result<std::string> parse_unload_adapter(std::string_view body) {
  MEDLEY_TRY_ASSIGN(const Json json, parse_object(body));
  ObjectReader reader(json);
  std::string name;
  reader.read("lora_name", name);
  if (reader.error()) return *reader.error();
  if (name.empty()) {
    return invalid_argument("'lora_name' needs to be provided to unload a LoRA adapter.",
                            "lora_name");
  }
  return name;
}

std::string render_adapters(const std::vector<AdapterStatus>& adapters, int max_on_device) {
  Json data = Json::array();
  for (const AdapterStatus& adapter : adapters) {
    data.push_back(
        {{"name", adapter.name},
         {"path", adapter.path},
         {"state", adapter.state},
         {"residency", adapter.residency},
         {"rank", adapter.rank > 0 ? Json(adapter.rank) : Json(nullptr)},
         {"bytes", adapter.num_bytes > 0 ? Json(adapter.num_bytes) : Json(nullptr)},
         {"hash", text_or_null(adapter.hash)},
         {"num_requests", adapter.num_requests},
         {"pinned", adapter.pinned},
         {"last_used", adapter.last_used > 0.0 ? Json(adapter.last_used) : Json(nullptr)},
         {"error", text_or_null(adapter.error)},
         {"warnings", adapter.warnings}});
  }
  return dump_json(
      Json{{"object", "list"}, {"max_on_device", max_on_device}, {"data", std::move(data)}});
}

std::string render_dry_run(const AdapterStatus& adapter) {
  return dump_json(Json{{"valid", true},
                        {"path", adapter.path},
                        {"rank", adapter.rank},
                        {"bytes", adapter.num_bytes},
                        {"hash", adapter.hash},
                        {"warnings", adapter.warnings}});
}

}  // namespace medley::api
