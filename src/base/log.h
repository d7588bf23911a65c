#pragma once

#include <spdlog/spdlog.h>

namespace medley {

// Logging is spdlog's default logger on stderr: log::info("loaded {} tensors", n). Thread-safe.
namespace log = spdlog;

// Sets the format and the level ("trace" to "off"; MEDLEY_LOG_LEVEL in the environment wins).
void init_logging(const char* level = "info");

}  // namespace medley
