#include "coppice/server/reply_format.h"

#include "coppice/server/api_error.h"

namespace coppice {
namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool is_control(const Tokenizer& tokenizer, std::string_view text) {
  const auto id = tokenizer.find_token(text);
  return id && tokenizer.is_special(*id);
}

ToolFormat tool_format(std::string_view source, const Tokenizer& tokenizer) {
  if (!has(source, "tools")) return ToolFormat::kNone;
  if (has(source, "<tool_call>")) {
    const bool object = has(source, R"({"name")") || has(source, R"({\"name\")");
    bool json = object && has(source, "arguments") && has(source, "</tool_call>");
    for (const char* other : {"<function=", "<arg_key>", "<|tool_call>", "<tool_calls>"}) {
      json = json && !has(source, other);  // marks of other forms
    }
    return json && !is_control(tokenizer, "<tool_call>") ? ToolFormat::kHermes : ToolFormat::kNone;
  }
  return has(source, "\"parameters\": dictionary of argument name and its value")
             ? ToolFormat::kLlama
             : ToolFormat::kNone;
}

}  // namespace

TemplateHabits template_habits(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const std::string_view source = chat_template.source();
  return {.thinking = has(source, "<think>") && has(source, "</think>") &&
                      !is_control(tokenizer, "<think>") && !is_control(tokenizer, "</think>"),
          .tools = tool_format(source, tokenizer)};
}

bool begins_inside_thinking(std::string_view prompt) {
  const std::size_t last = prompt.find_last_not_of(" \t\r\n");
  return last != std::string_view::npos && prompt.substr(0, last + 1).ends_with("<think>");
}

ReplyFormat reply_format(const TemplateHabits& habits, const ChatRequest& request,
                         std::string_view prompt) {
  ReplyFormat format;
  format.thinking = habits.thinking;
  format.begins_inside = habits.thinking && begins_inside_thinking(prompt);
  if (request.tools.is_null()) return format;
  if (habits.tools == ToolFormat::kNone) {
    throw ApiError(400,
                   "tools: this model's chat template asks for no form of tool calls that this "
                   "server reads",
                   "tools", "unsupported_parameter");
  }
  format.tools = habits.tools;
  for (const OrderedJson& tool : request.tools) {
    format.names.insert(tool.at("function").at("name").get<std::string>());
  }
  return format;
}

}  // namespace coppice
