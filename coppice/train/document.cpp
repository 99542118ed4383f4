#include "coppice/train/document.h"

#include <algorithm>
#include <array>

#include "coppice/core/error.h"

namespace coppice {
namespace {

constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};

std::string text_field(const OrderedJson& object, const char* key, std::string_view where) {
  const auto at = object.find(key);
  if (at == object.end()) return {};
  if (!at->is_string())
    fail_argument("{}: \"{}\" must be a text, got {}", where, key, at->type_name());
  return at->get<std::string>();
}

// Checks one part of a content list; whether it is an image or a video.
bool is_media(const OrderedJson& part, std::string_view where, std::size_t message) {
  const std::string type = part.is_object() ? text_field(part, "type", where) : "";
  if (type != "text" && type != "image" && type != "video")
    fail_argument("{}: messages[{}]: a part must have the type text, image or video, got {}", where,
                  message, type.empty() ? part.type_name() : type.c_str());
  const char* key = type == "text" ? "text" : "path";
  if (!part.contains(key) || !part[key].is_string())
    fail_argument("{}: messages[{}]: a part of type {} needs \"{}\", a text", where, message, type,
                  key);
  return type != "text";
}

int64_t check_message(const OrderedJson& message, std::string_view where, std::size_t index) {
  if (!message.is_object())
    fail_argument("{}: messages[{}] must be an object, got {}", where, index, message.type_name());
  const std::string role = text_field(message, "role", where);
  if (std::ranges::find(kRoles, role) == kRoles.end())
    fail_argument("{}: messages[{}]: expected the role system, user, assistant or tool, got \"{}\"",
                  where, index, role);
  const auto content = message.find("content");
  if (content == message.end() || (!content->is_string() && !content->is_array()))
    fail_argument("{}: messages[{}]: expected content, a text or a list of parts, got {}", where,
                  index, content == message.end() ? "none" : content->type_name());
  if (content->is_string()) return 0;
  int64_t media = 0;
  for (const OrderedJson& part : *content) media += is_media(part, where, index) ? 1 : 0;
  return media;
}

}  // namespace

Document parse_document(std::string_view line, std::string_view where) {
  const OrderedJson json = parse_ordered_json(line, where);
  if (!json.is_object()) fail_argument("{}: expected an object, got {}", where, json.type_name());
  Document document;
  document.id = text_field(json, "id", where);
  document.source = text_field(json, "source", where);
  const bool plain = json.contains("text");
  if (plain == json.contains("messages"))
    fail_argument("{}: expected either \"text\" or \"messages\", got {}", where,
                  plain ? "both" : "none");
  if (plain) {
    document.text = text_field(json, "text", where);
    return document;
  }
  const OrderedJson& messages = json["messages"];
  if (!messages.is_array() || messages.empty())
    fail_argument("{}: \"messages\" must be a list with at least one message, got {}", where,
                  messages.is_array() ? "an empty list" : messages.type_name());
  for (std::size_t i = 0; i < messages.size(); ++i)
    document.media += check_message(messages[i], where, i);
  document.messages = messages;
  return document;
}

}  // namespace coppice
