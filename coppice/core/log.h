// Messages for people, on stderr: spdlog with one format. `COPPICE_LOG` sets the level (debug,
// info, warn, error); the default is warn, so that a program's own output stays alone.
#pragma once

#include <spdlog/spdlog.h>

namespace coppice {

spdlog::logger& logger();

template <typename... Args>
void log_warning(spdlog::format_string_t<Args...> format, Args&&... args) {
  logger().warn(format, std::forward<Args>(args)...);
}

template <typename... Args>
void log_info(spdlog::format_string_t<Args...> format, Args&&... args) {
  logger().info(format, std::forward<Args>(args)...);
}

}  // namespace coppice
