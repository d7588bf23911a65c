#pragma once

#include <nlohmann/json.hpp>

namespace medley::text {

// JSON that keeps the order of keys: chat templates print tools and arguments in the client's
// order.
using Json = nlohmann::ordered_json;

}  // namespace medley::text
