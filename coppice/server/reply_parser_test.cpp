// Answers taken apart: what is thinking, text and call, wherever the pieces end.
#include "coppice/server/reply_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace coppice {
namespace {

ReplyFormat hermes(bool thinking = false) {
  return {.thinking = thinking, .tools = ToolFormat::kHermes, .names = {"f", "weather"}};
}
ReplyFormat llama() { return {.tools = ToolFormat::kLlama, .names = {"f", "weather"}}; }

void add(ReplyParts& whole, const ReplyParts& part) {
  whole.reasoning += part.reasoning;
  whole.content += part.content;
  whole.calls.insert(whole.calls.end(), part.calls.begin(), part.calls.end());
}

ReplyParts parse(const ReplyFormat& format, const std::vector<std::string>& pieces) {
  ReplyParser parser(format);
  ReplyParts whole;
  for (const std::string& piece : pieces) add(whole, parser.push(piece));
  add(whole, parser.finish());
  EXPECT_EQ(parser.called(), !whole.calls.empty());
  return whole;
}

void expect_same(const ReplyParts& got, const ReplyParts& expected, const std::string& what) {
  EXPECT_EQ(got.reasoning, expected.reasoning) << what;
  EXPECT_EQ(got.content, expected.content) << what;
  EXPECT_EQ(got.calls, expected.calls) << what;
}

// In one piece, in two pieces at every place, in three at every pair of places, byte by byte.
void check(const ReplyFormat& format, const std::string& text, const ReplyParts& expected) {
  expect_same(parse(format, {text}), expected, text);
  std::vector<std::string> bytes;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    expect_same(parse(format, {text.substr(0, i), text.substr(i)}), expected,
                text.substr(0, i) + "|" + text.substr(i));
    for (std::size_t j = i; j <= text.size(); ++j) {
      expect_same(parse(format, {text.substr(0, i), text.substr(i, j - i), text.substr(j)}),
                  expected, text);
    }
    if (i < text.size()) bytes.emplace_back(1, text[i]);
  }
  expect_same(parse(format, bytes), expected, "bytes of " + text);
}

const ToolCall kParis{"weather", R"({"city":"Paris","days":2})"};

TEST(ReplyParser, text_stays_text) {
  for (const std::string& text :
       {std::string(), std::string("hello"), std::string(" \n"), std::string("a < b <tool"),
        std::string("<tool_cal> x"), std::string("x </think> y"), std::string("\n{\"a\":1}\n")}) {
    check({}, text, {.content = text});
    check(hermes(), text, {.content = text});
    check(llama(), text, {.content = text});
    check(hermes(true), text, {.content = text});
  }
}

TEST(ReplyParser, calls_between_marks) {
  const std::string call =
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 2}}\n"
      "</tool_call>";
  check(hermes(), call, {.content = "", .calls = {kParis}});
  check(hermes(), "Let me see.\n" + call, {.content = "Let me see.", .calls = {kParis}});
  check(hermes(), call + "\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n",
        {.content = "", .calls = {kParis, {"f", "{}"}}});
  check(hermes(), call + "\n then text ", {.content = "then text ", .calls = {kParis}});
  // The end of the answer ends a call that is complete.
  check(hermes(), call.substr(0, call.size() - 13), {.content = "", .calls = {kParis}});
  check(hermes(), call.substr(0, call.size() - 4), {.content = call.substr(0, call.size() - 4)});
}

TEST(ReplyParser, what_is_no_call_is_text_to_the_letter) {
  for (const std::string& text :
       {std::string("a \n<tool_call>\n{\"name\": \"weather\"}\n</tool_call> b"),
        std::string("<tool_call>{\"name\":\"unknown\",\"arguments\":{}}</tool_call>"),
        std::string("<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>"),
        std::string("<tool_call>{\"name\":\"f\",\"argu"), std::string("x <tool_call>"),
        std::string("<tool_call>[]</tool_call>"), std::string("<tool_call></tool_call>")}) {
    check(hermes(), text, {.content = text});
  }
  EXPECT_EQ(parse(hermes(), {"<tool_call>" + std::string(5000, '[') + "</tool_call>"}).calls.size(),
            0U);
}

TEST(ReplyParser, calls_as_the_whole_answer) {
  const std::string call = R"({"name": "weather", "parameters": {"city": "Paris", "days": 2}})";
  check(llama(), call, {.content = "", .calls = {kParis}});
  check(llama(), "\n" + call + "; " + call + "\n", {.content = "", .calls = {kParis, kParis}});
  const std::string braces = R"({"name":"f","parameters":{"a":"}\"{"}})";
  check(llama(), braces, {.content = "", .calls = {{"f", R"({"a":"}\"{"})"}}});
  for (const std::string& text :
       {call + " and text", "text " + call, call.substr(1), call.substr(0, call.size() - 1),
        std::string(R"({"name": "unknown", "parameters": {}})"), std::string("{")}) {
    check(llama(), text, {.content = text});
  }
}

TEST(ReplyParser, thinking_is_kept_apart) {
  const ReplyFormat format{.thinking = true};
  check(format, "<think>\nwell, now\n</think>\n\nYes. ",
        {.reasoning = "well, now", .content = "Yes. "});
  check(format, "\n<think>\n\n</think>\n\nYes", {.reasoning = "", .content = "Yes"});
  check(format, "<think>on and on\n", {.reasoning = "on and on\n", .content = ""});
  check(format, "<think>a </thin b</think>", {.reasoning = "a </thin b", .content = ""});
  check(format, "a <think>b</think>", {.content = "a <think>b</think>"});
  check(format, "<thin", {.content = "<thin"});
  const ReplyFormat inside{.thinking = true, .begins_inside = true};
  check(inside, "well\n</think>\n\nYes", {.reasoning = "well", .content = "Yes"});
  check(inside, "\nwell", {.reasoning = "well", .content = ""});
  check(hermes(true),
        "<think>use f</think>\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
        {.reasoning = "use f", .content = "", .calls = {{"f", "{}"}}});
}

// Text is given out as soon as it cannot be a mark any more.
TEST(ReplyParser, text_is_not_held_back) {
  ReplyParser parser(hermes(true));
  EXPECT_EQ(parser.push("Hello").content, "Hello");
  EXPECT_EQ(parser.push(" there <").content, " there");
  EXPECT_EQ(parser.push("b>").content, " <b>");
  ReplyParser other(llama());
  EXPECT_EQ(other.push("No").content, "No");
  EXPECT_EQ(other.push("{").content, "{");
  ReplyParser thinks(hermes(true));
  EXPECT_EQ(thinks.push("<think>one").reasoning, "one");
  EXPECT_EQ(thinks.push(" two").reasoning, " two");
}

}  // namespace
}  // namespace coppice
