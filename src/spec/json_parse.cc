#include "spec/json_parse.h"

#include <optional>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace medley {
namespace {

constexpr size_t kMaxBriefLength = 120;

template <class Json>
Result<Json> parse(std::string_view text, const std::string& what) {
  std::vector<std::set<std::string>> keys;  // of each open object
  std::optional<std::string> duplicate;
  bool too_deep = false;
  const typename Json::parser_callback_t callback = [&](int depth, auto event, Json& value) {
    if (depth > kMaxJsonDepth) too_deep = true;
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.empty()) {
      const auto& key = value.template get_ref<const std::string&>();
      if (!keys.back().insert(key).second && !duplicate) duplicate = key;
    }
    return !too_deep;
  };
  Json parsed = Json::parse(text, callback, /*allow_exceptions=*/false);
  if (too_deep) {
    return invalid_argument(fmt::format("{}: nested deeper than {} levels", what, kMaxJsonDepth));
  }
  if (duplicate) return invalid_argument(fmt::format("{}: '{}' appears twice", what, *duplicate));
  if (parsed.is_discarded()) return invalid_argument(fmt::format("{}: not valid JSON", what));
  return parsed;
}

template <class Json>
std::string cut_text(const Json& value) {
  std::string text =
      value.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kMaxBriefLength) text = text.substr(0, kMaxBriefLength) + "...";
  return text;
}

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, const std::string& what) {
  return parse<nlohmann::json>(text, what);
}

Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text, const std::string& what) {
  return parse<nlohmann::ordered_json>(text, what);
}

std::string brief(const nlohmann::json& value) { return cut_text(value); }
std::string brief(const nlohmann::ordered_json& value) { return cut_text(value); }

}  // namespace medley
