// How a model writes tool calls and thinking: read off its chat template, the one place that says.
#pragma once

#include <string_view>

#include "coppice/processor/chat_template.h"
#include "coppice/processor/tokenizer.h"
#include "coppice/server/reply_parser.h"

namespace coppice {

// What the template of a model tells its answers to look like.
struct TemplateHabits {
  bool thinking = false;
  ToolFormat tools = ToolFormat::kNone;
};

// <think> in the template: thinking. Tools: <tool_call> with JSON inside is Hermes' form (Qwen 2.5,
// Qwen 3, SmolLM3, Hermes); a request for "name" and "parameters" in so many words is Llama 3's.
// Marks that the vocabulary has as control tokens give no text, so none of them is read.
TemplateHabits template_habits(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

// Whether an answer to this prompt begins inside its thinking.
bool begins_inside_thinking(std::string_view prompt);

// What one chat request's answers are read as. Throws ApiError 400 where it brings tools and the
// template knows no form of calls that is read here.
ReplyFormat reply_format(const TemplateHabits& habits, const ChatRequest& request,
                         std::string_view prompt);

}  // namespace coppice
