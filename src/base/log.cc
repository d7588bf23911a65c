#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdlib>

namespace medley {

void init_logging(const char* level) {
  const char* env = std::getenv("MEDLEY_LOG_LEVEL");
  auto logger = std::make_shared<spdlog::logger>(
      "medley", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  logger->set_level(spdlog::level::from_str(env != nullptr ? env : level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace medley
