#pragma once

#include <string_view>

#include "base/error.h"
#include "text/json.h"

namespace medley::api {

using text::Json;

inline constexpr int kMaxJsonDepth = 64;
inline constexpr int kMaxJsonKeys = 1024;  // of one object

// kInvalidArgument with the byte position for text that is not JSON (RFC 8259), is nested deeper
// than kMaxJsonDepth, or has an object with more keys than kMaxJsonKeys.
Result<Json> parse_json(std::string_view text);

// Compact; bytes that are not UTF-8 become U+FFFD.
std::string dump_json(const Json& json);

}  // namespace medley::api
