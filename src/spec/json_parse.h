#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "base/error.h"

namespace medley {

inline constexpr int kMaxJsonDepth = 64;

// Parses outside text: valid JSON (RFC 8259) of at most kMaxJsonDepth levels, no key twice in one
// object. `what` names the file in errors (kInvalidArgument). Never throws.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& what);
// The same, with members kept in the order of the text (found in linear time: for small files).
Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text, const std::string& what);

// A value for an error message, cut to a readable length.
std::string brief(const nlohmann::json& value);
std::string brief(const nlohmann::ordered_json& value);

}  // namespace medley
