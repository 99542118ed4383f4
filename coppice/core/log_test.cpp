// Lines of the log that programs read.
#include "coppice/core/log.h"

#include <gtest/gtest.h>

namespace coppice {
namespace {

TEST(Log, lines_in_json_hold_any_message_and_the_fields_beside_it) {
  const std::chrono::system_clock::time_point time{std::chrono::milliseconds{1700000000042}};
  const std::string line =
      json_log_line("info", time, "two\nlines \"x\" \xff", {{"request", "r-1"}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Json read = parse_json(line, "line");
  EXPECT_EQ(read["time"], "2023-11-14T22:13:20.042Z");
  EXPECT_EQ(read["level"], "info");
  EXPECT_EQ(read["request"], "r-1");
  EXPECT_TRUE(read["message"].get<std::string>().starts_with("two\nlines \"x\""));
}

TEST(Log, fields_never_replace_what_every_line_has) {
  const Json read = parse_json(
      json_log_line("warn", {}, "said", {{"level", "x"}, {"message", "y"}, {"time", 1}}), "line");
  EXPECT_EQ(read["level"], "warn");
  EXPECT_EQ(read["message"], "said");
  EXPECT_EQ(read["time"], "1970-01-01T00:00:00.000Z");
}

}  // namespace
}  // namespace coppice
