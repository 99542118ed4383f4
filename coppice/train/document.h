// One line of a training file: a plain text, or a conversation.
//
//   {"id": "..", "source": "..", "text": ".."}
//   {"id": "..", "source": "..", "messages": [{"role": "user", "content": ".."}, ..]}
//
// A role is system, user, assistant or tool. Content is a text, or a list of parts {"type": "text",
// "text": ..}, {"type": "image", "path": ..}, {"type": "video", "path": ..}. Other keys are passed
// over.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "coppice/processor/chat_template.h"

namespace coppice {

struct Document {
  std::string id;
  std::string source;
  std::string text;      // of a plain document
  OrderedJson messages;  // of a conversation; null otherwise
  int64_t media = 0;     // images and videos in it

  bool is_conversation() const { return messages.is_array(); }
};

// Throws kInvalidArgument; the message starts with `where`, such as "mix.jsonl:17".
Document parse_document(std::string_view line, std::string_view where);

}  // namespace coppice
