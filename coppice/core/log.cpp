#include "coppice/core/log.h"

#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdlib>

namespace coppice {
namespace {

// Its messages are whole lines.
constexpr std::string_view kLines = "coppice lines";

std::string_view level_name(spdlog::level::level_enum level) {
  const spdlog::string_view_t name = spdlog::level::to_string_view(level);
  return {name.data(), name.size()};
}

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string_view text(message.payload.data(), message.payload.size());
    const std::string_view name(message.logger_name.data(), message.logger_name.size());
    const std::string line = name == kLines
                                 ? std::string(text)
                                 : json_log_line(level_name(message.level), message.time, text, {});
    out.append(line.data(), line.data() + line.size());
    out.push_back('\n');
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

struct Loggers {
  Loggers() {
    const char* format = std::getenv("COPPICE_LOG_FORMAT");
    const std::string wanted = format ? format : "text";
    json = wanted == "json";
    const auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    messages = std::make_shared<spdlog::logger>("coppice", sink);
    lines = std::make_shared<spdlog::logger>(std::string(kLines), sink);
    if (json) {
      sink->set_formatter(std::make_unique<JsonFormatter>());
    } else {
      sink->set_pattern("%^%l%$: %v");
    }
    const char* level = std::getenv("COPPICE_LOG");
    for (spdlog::logger* one : {messages.get(), lines.get()}) {
      one->set_level(level ? spdlog::level::from_str(level) : spdlog::level::warn);
    }
    if (!json && wanted != "text") {
      messages->warn("COPPICE_LOG_FORMAT: expected text or json, got {}", wanted);
    }
  }
  std::shared_ptr<spdlog::logger> messages, lines;
  bool json = false;
};

Loggers& loggers() {
  static Loggers instance;
  return instance;
}

}  // namespace

spdlog::logger& logger() { return *loggers().messages; }

std::string json_log_line(std::string_view level, std::chrono::system_clock::time_point time,
                          std::string_view message, const Json& fields) {
  using std::chrono::duration_cast;
  const auto since = time.time_since_epoch();
  const auto seconds = duration_cast<std::chrono::seconds>(since);
  const auto rest = duration_cast<std::chrono::milliseconds>(since - seconds).count();
  std::time_t whole = seconds.count();
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  Json line = fields.is_object() ? fields : Json::object();
  line["time"] =
      fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900,
                  parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, rest);
  line["level"] = level;
  line["message"] = message;
  return dump_json(line);
}

void log_info_fields(std::string_view message, const Json& fields) {
  const Loggers& use = loggers();
  if (!use.messages->should_log(spdlog::level::info)) return;
  if (!use.json) return use.messages->info("{}: {}", message, dump_json(fields));
  use.lines->info("{}", json_log_line(level_name(spdlog::level::info),
                                      std::chrono::system_clock::now(), message, fields));
}

}  // namespace coppice
