// Where the messages of a chat stand in the prompt that a template made of them.
//
// Templates write a chat message by message, in a loop: what one round of it writes is the place of
// that round's message, role markers included. A first message that no loop writes (a system
// message, in many templates) is what stands before the second, where its content is found there.
// A message that is written in several rounds, or in none, has no place that can be told.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "coppice/processor/jinja_runtime.h"
#include "coppice/processor/text_range.h"

namespace coppice {

// `messages` as the template got them; `written` of the Runtime that watched them. -> [messages]
std::vector<std::optional<TextRange>> message_places(
    const jinja::Text& text, const std::vector<jinja::Runtime::Written>& written,
    const nlohmann::ordered_json& messages);

}  // namespace coppice
