#pragma once

#include <string_view>

namespace medley::server {

// The HTML of `GET /`.
extern const std::string_view kPage;

}  // namespace medley::server
