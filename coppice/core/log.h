// Messages on stderr: spdlog with one format. `COPPICE_LOG` sets the level (debug, info, warn,
// error); the default is warn, so that a program's own output stays alone.
// `COPPICE_LOG_FORMAT=json` makes each message one JSON object a line, {"time", "level", "message",
// ...}, for programs that collect logs.
#pragma once

#include <spdlog/spdlog.h>

#include <chrono>
#include <string>
#include <string_view>

#include "coppice/core/json.h"

namespace coppice {

spdlog::logger& logger();

// A message with data: `message: {fields}` as text; in JSON the fields stand beside the message.
void log_info_fields(std::string_view message, const Json& fields);

// The line that `COPPICE_LOG_FORMAT=json` writes, without its end.
std::string json_log_line(std::string_view level, std::chrono::system_clock::time_point time,
                          std::string_view message, const Json& fields);

template <typename... Args>
void log_warning(spdlog::format_string_t<Args...> format, Args&&... args) {
  logger().warn(format, std::forward<Args>(args)...);
}

template <typename... Args>
void log_info(spdlog::format_string_t<Args...> format, Args&&... args) {
  logger().info(format, std::forward<Args>(args)...);
}

}  // namespace coppice
