// The bodies of the endpoints as plain values: read, checked, not yet tokenised.
//
// Throws ApiError 400, which names the field, for everything that is malformed or not supported.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "coppice/processor/chat_template.h"
#include "coppice/server/generation.h"

namespace coppice {

struct ChatBody {
  std::optional<std::string> model;
  ChatRequest chat;
  std::vector<std::string> images;  // files, in the order of their places in `chat`
  Generation generation;
};

using CompletionPrompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionBody {
  std::optional<std::string> model;
  std::vector<CompletionPrompt> prompts;  // at least one
  bool echo = false;
  Generation generation;
};

struct TokenizeBody {
  std::optional<std::string> model;
  std::optional<std::string> prompt;  // or
  std::optional<ChatRequest> chat;
  std::vector<std::string> images;  // of the chat
  bool add_special_tokens = true;   // of a prompt
};

struct DetokenizeBody {
  std::optional<std::string> model;
  std::vector<int32_t> tokens;
};

// A conversation to be saved: prompt or messages, as a request would read them.
struct SessionBody {
  std::string name;
  std::optional<std::string> model;
  std::optional<std::string> prompt;  // or
  std::optional<ChatRequest> chat;    // without a generation prompt
  KvWish kv;
};

ChatBody read_chat_body(std::string_view body);
CompletionBody read_completion_body(std::string_view body);
TokenizeBody read_tokenize_body(std::string_view body);
DetokenizeBody read_detokenize_body(std::string_view body);
SessionBody read_session_body(std::string_view body);

}  // namespace coppice
