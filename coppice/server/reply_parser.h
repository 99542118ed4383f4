// Takes a model's answer apart as it comes: thinking, text, tool calls.
//
//   ReplyParser parser(format);
//   for each piece of text:  ReplyParts fresh = parser.push(piece);
//   at the end:              ReplyParts rest = parser.finish();
//
// The parts do not depend on where the text is cut into pieces. A call is given out whole, once it
// is complete: valid JSON, an object, with the name of a tool that was offered and an object of
// arguments. Whatever does not come to a call stays text, character for character. Blanks between a
// call and what stands beside it are no text.
//
// A pure state machine. Not thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

enum class ToolFormat {
  kNone,
  kHermes,  // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, between or after text
  kLlama,   // the whole answer is {"name": ..., "parameters": {...}}, or several with ; between
};

struct ReplyFormat {
  bool thinking = false;       // an answer may begin with <think>...</think>
  bool begins_inside = false;  // the prompt has opened <think> already
  ToolFormat tools = ToolFormat::kNone;
  std::set<std::string, std::less<>> names = {};  // of the tools that were offered
};

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text of an object

  bool operator==(const ToolCall&) const = default;
};

struct ReplyParts {
  std::string reasoning = {}, content = {};
  std::vector<ToolCall> calls = {};
};

class ReplyParser final {
 public:
  explicit ReplyParser(const ReplyFormat& format);

  ReplyParts push(std::string_view piece);
  ReplyParts finish();
  bool called() const { return called_; }  // there was a call

 private:
  enum class State { kStart, kThinking, kText, kCall, kWhole };

  // Each takes what it can off held_ and says whether to go on.
  bool read_start(bool last);
  bool read_thinking(bool last, ReplyParts& parts);
  bool read_text(bool last, ReplyParts& parts);
  bool read_call(bool last, ReplyParts& parts);
  bool read_whole(bool last, ReplyParts& parts);
  void read(bool last, ReplyParts& parts);
  void close_call(std::string_view body, std::string_view end, ReplyParts& parts);
  std::optional<ToolCall> parse_call(std::string_view text) const;
  std::optional<std::vector<ToolCall>> parse_calls(std::string_view text) const;
  void skip_leading(std::string_view characters);

  const ReplyFormat format_;
  State state_;
  std::string held_;            // not yet given out
  std::string blanks_;          // before the call that is being read
  std::size_t searched_ = 0;    // of held_, for the end of a call
  std::string_view skip_ = {};  // characters that what follows does not begin with
  bool is_text_ = false;        // kWhole: what begins like calls is none
  bool called_ = false;
};

}  // namespace coppice
