#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace medley {

// Names match [A-Za-z0-9._:/@-]{1,256}; kInvalidArgument otherwise.
Result<void> check_adapter_name(std::string_view name);

// The folder of adapter `name` under `root`. kNotFound unless it is there, has an
// adapter_config.json, and lies inside the root once symbolic links are followed.
Result<std::string> find_under_root(const std::string& root, const std::string& name);

// `path`, taken from the root when relative, with symbolic links followed. kForbidden unless it
// lies inside the root, whether or not it exists.
Result<std::string> find_inside_root(const std::string& root, const std::string& path);

}  // namespace medley
