#include "spec/json_parse.h"

#include <optional>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace medley {
namespace {

using nlohmann::json;

constexpr size_t kMaxBriefLength = 120;

}  // namespace

Result<json> parse_json(std::string_view text, const std::string& what) {
  std::vector<std::set<std::string>> keys;  // of each open object
  std::optional<std::string> duplicate;
  bool too_deep = false;
  const json::parser_callback_t callback = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxJsonDepth) too_deep = true;
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.empty()) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && !duplicate) duplicate = key;
    }
    return !too_deep;
  };
  json parsed = json::parse(text, callback, /*allow_exceptions=*/false);
  if (too_deep) {
    return invalid_argument(fmt::format("{}: nested deeper than {} levels", what, kMaxJsonDepth));
  }
  if (duplicate) return invalid_argument(fmt::format("{}: '{}' appears twice", what, *duplicate));
  if (parsed.is_discarded()) return invalid_argument(fmt::format("{}: not valid JSON", what));
  return parsed;
}

std::string brief(const json& value) {
  std::string text =
      value.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kMaxBriefLength) text = text.substr(0, kMaxBriefLength) + "...";
  return text;
}

}  // namespace medley
