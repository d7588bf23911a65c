#include "api/json.h"

#include <vector>

namespace medley::api {
namespace {

// Bounds what the parser may be made to do: its cost grows with the square of an object's keys, and
// printing recurses into nested values.
Result<void> check_limits(std::string_view text) {
  std::vector<int> num_keys;  // of each open object or array
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      num_keys.push_back(0);
      if (num_keys.size() > kMaxJsonDepth) {
        return invalid_argument(
            fmt::format("JSON is nested deeper than {} levels at byte {}", kMaxJsonDepth, i + 1));
      }
    } else if ((c == '}' || c == ']') && !num_keys.empty()) {
      num_keys.pop_back();
    } else if (c == ':' && !num_keys.empty() && ++num_keys.back() > kMaxJsonKeys) {
      return invalid_argument(
          fmt::format("JSON object has more than {} keys at byte {}", kMaxJsonKeys, i + 1));
    }
  }
  return {};
}

}  // namespace

Result<Json> parse_json(std::string_view text) {
  MEDLEY_TRY(check_limits(text));
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    // The library's text: "[json.exception.parse_error.101] parse error at line 1, column 2: ...".
    std::string_view what = error.what();
    if (const size_t end = what.find("] "); end != std::string_view::npos) {
      what.remove_prefix(end + 2);
    }
    return invalid_argument(
        fmt::format("the body is not valid JSON: error at byte {}: {}", error.byte, what));
  } catch (const Json::exception& error) {
    return invalid_argument(fmt::format("the body is not valid JSON: {}", error.what()));
  }
}

std::string dump_json(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace medley::api
