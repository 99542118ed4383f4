#include "coppice/server/reply_parser.h"

#include <algorithm>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/processor/chat_template.h"

namespace coppice {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kCallBegin = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::string_view kBlanks = " \t\r\n";

// Bytes at the end of `text` that may be the beginning of `mark`, blanks before them included.
std::size_t held_bytes(std::string_view text, std::string_view mark) {
  std::size_t part = std::min(text.size(), mark.size() - 1);
  while (!text.ends_with(mark.substr(0, part))) --part;
  const std::string_view before = text.substr(0, text.size() - part);
  const std::size_t last = before.find_last_not_of(kBlanks);
  return text.size() - (last == std::string_view::npos ? 0 : last + 1);
}

std::string_view trimmed_end(std::string_view text) {
  const std::size_t last = text.find_last_not_of(kBlanks);
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

// One past the object that `text` begins with; npos where it does not end.
std::size_t object_end(std::string_view text) {
  int64_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

}  // namespace

ReplyParser::ReplyParser(const ReplyFormat& format)
    : format_(format),
      state_(format.begins_inside ? State::kThinking
             : format.thinking    ? State::kStart
                                  : State::kText),
      skip_(format.begins_inside ? kBlanks : std::string_view()) {}

ReplyParts ReplyParser::push(std::string_view piece) {
  held_ += piece;
  ReplyParts parts;
  read(false, parts);
  return parts;
}

ReplyParts ReplyParser::finish() {
  ReplyParts parts;
  read(true, parts);
  parts.content += held_;
  held_.clear();
  return parts;
}

void ReplyParser::read(bool last, ReplyParts& parts) {
  while (true) {
    bool more = false;
    switch (state_) {
      case State::kStart:
        more = read_start(last);
        break;
      case State::kThinking:
        more = read_thinking(last, parts);
        break;
      case State::kText:
        more = read_text(last, parts);
        break;
      case State::kCall:
        more = read_call(last, parts);
        break;
      case State::kWhole:
        more = read_whole(last, parts);
        break;
    }
    if (!more) return;
  }
}

void ReplyParser::skip_leading(std::string_view characters) {
  if (characters.empty()) return;
  held_.erase(0, std::min(held_.size(), held_.find_first_not_of(characters)));
  if (!held_.empty()) skip_ = {};
}

bool ReplyParser::read_start(bool last) {
  const std::size_t first = held_.find_first_not_of(kBlanks);
  const std::string_view rest =
      first == std::string::npos ? std::string_view() : std::string_view(held_).substr(first);
  if (rest.starts_with(kThink)) {
    held_.erase(0, first + kThink.size());
    state_ = State::kThinking;
    skip_ = kBlanks;
    return true;
  }
  if (!last && kThink.starts_with(rest)) return false;
  state_ = State::kText;
  return true;
}

bool ReplyParser::read_thinking(bool last, ReplyParts& parts) {
  skip_leading(skip_);
  const std::size_t end = held_.find(kThinkEnd);
  if (end != std::string::npos) {
    parts.reasoning += trimmed_end(std::string_view(held_).substr(0, end));
    held_.erase(0, end + kThinkEnd.size());
    state_ = State::kText;
    skip_ = kBlanks;
    return true;
  }
  const std::size_t ready = last ? held_.size() : held_.size() - held_bytes(held_, kThinkEnd);
  parts.reasoning += held_.substr(0, ready);
  held_.erase(0, ready);
  return false;
}

bool ReplyParser::read_text(bool last, ReplyParts& parts) {
  skip_leading(skip_);
  if (format_.tools == ToolFormat::kLlama) {
    if (!last && held_.find_first_not_of(kBlanks) == std::string::npos) return false;
    state_ = State::kWhole;
    return true;
  }
  std::size_t ready = held_.size();
  if (format_.tools == ToolFormat::kHermes) {
    const std::size_t mark = held_.find(kCallBegin);
    if (mark != std::string::npos) {
      const std::string_view text = trimmed_end(std::string_view(held_).substr(0, mark));
      parts.content += text;
      blanks_ = held_.substr(text.size(), mark - text.size());
      held_.erase(0, mark + kCallBegin.size());
      state_ = State::kCall;
      searched_ = 0;
      return true;
    }
    if (!last) ready -= held_bytes(held_, kCallBegin);
  }
  parts.content += held_.substr(0, ready);
  held_.erase(0, ready);
  return false;
}

bool ReplyParser::read_call(bool last, ReplyParts& parts) {
  const std::size_t end = held_.find(kCallEnd, searched_);
  if (end == std::string::npos) {
    searched_ = held_.size() - std::min(held_.size(), kCallEnd.size() - 1);
    if (last) {  // complete but for its end mark, or no call
      const std::string body = std::exchange(held_, {});
      close_call(body, {}, parts);
    }
    return false;
  }
  const std::string body = held_.substr(0, end);
  held_.erase(0, end + kCallEnd.size());
  close_call(body, kCallEnd, parts);
  return true;
}

void ReplyParser::close_call(std::string_view body, std::string_view end, ReplyParts& parts) {
  state_ = State::kText;
  if (std::optional<ToolCall> call = parse_call(body)) {
    parts.calls.push_back(*std::move(call));
    called_ = true;
    skip_ = kBlanks;
  } else {
    parts.content += blanks_;
    parts.content += kCallBegin;
    parts.content += body;
    parts.content += end;
  }
}

// Where the whole answer is calls or none is: nothing of what may be calls is given out before the
// end.
bool ReplyParser::read_whole(bool last, ReplyParts& parts) {
  const std::size_t first = held_.find_first_not_of(kBlanks);
  const bool may_be_calls = !is_text_ && first != std::string::npos && held_[first] == '{';
  if (may_be_calls && !last) return false;
  if (may_be_calls) {
    if (std::optional<std::vector<ToolCall>> calls = parse_calls(held_)) {
      parts.calls = *std::move(calls);
      called_ = true;
      held_.clear();
      return false;
    }
  }
  is_text_ = true;
  parts.content += held_;
  held_.clear();
  return false;
}

std::optional<ToolCall> ReplyParser::parse_call(std::string_view text) const {
  OrderedJson object;
  try {
    object = parse_ordered_json(text, "tool call");
  } catch (const Error&) {
    return std::nullopt;
  }
  if (!object.is_object()) return std::nullopt;
  const auto name = object.find("name");
  if (name == object.end() || !name->is_string()) return std::nullopt;
  if (!format_.names.contains(name->get_ref<const std::string&>())) return std::nullopt;
  const char* key = format_.tools == ToolFormat::kLlama ? "parameters" : "arguments";
  const auto arguments = object.find(key);
  if (arguments == object.end() || !arguments->is_object()) return std::nullopt;
  return ToolCall{name->get<std::string>(),
                  arguments->dump(-1, ' ', false, OrderedJson::error_handler_t::replace)};
}

std::optional<std::vector<ToolCall>> ReplyParser::parse_calls(std::string_view text) const {
  std::vector<ToolCall> calls;
  while (true) {
    const std::size_t first = text.find_first_not_of(calls.empty() ? kBlanks : " \t\r\n;");
    if (first == std::string_view::npos) break;
    text.remove_prefix(first);
    const std::size_t end = object_end(text);
    if (end == std::string_view::npos) return std::nullopt;
    std::optional<ToolCall> call = parse_call(text.substr(0, end));
    if (!call) return std::nullopt;
    calls.push_back(*std::move(call));
    text.remove_prefix(end);
  }
  return calls.empty() ? std::nullopt : std::optional(std::move(calls));
}

}  // namespace coppice
