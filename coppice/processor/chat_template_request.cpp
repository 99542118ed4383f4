#include "coppice/processor/chat_template_request.h"

#include <algorithm>
#include <array>

#include "coppice/core/error.h"
#include "coppice/core/json.h"

namespace coppice {
namespace {

constexpr std::array<std::string_view, 7> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool",   "function",  "model"};

std::string_view kind_of(const OrderedJson& value) { return value.type_name(); }

bool speaks_for_model(std::string_view role) { return role == "assistant" || role == "model"; }

// The text of a list of parts, for a template that reads only strings.
std::string joined_parts(const OrderedJson& parts, const std::string& place) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const OrderedJson& part = parts[i];
    if (part.at("type") != "text") {
      fail_argument("{}.content[{}]: the template reads text only, got a part of type \"{}\"",
                    place, i, part.at("type").get_ref<const std::string&>());
    }
    if (i > 0) text += '\n';
    text += part.at("text").get_ref<const std::string&>();
  }
  return text;
}

void check_parts(const OrderedJson& parts, const std::string& place) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const OrderedJson& part = parts[i];
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      fail_argument("{}.content[{}]: expected an object with a string \"type\", got {}", place, i,
                    kind_of(part));
    }
    if (part["type"] != "text") continue;
    if (!part.contains("text") || !part["text"].is_string()) {
      fail_argument("{}.content[{}]: a part of type \"text\" needs a string \"text\"", place, i);
    }
  }
}

void prepare_content(OrderedJson& message, const std::string& role, const std::string& place,
                     const TemplateAbilities& abilities) {
  const auto content = message.find("content");
  const bool missing = content == message.end() || content->is_null();
  if (missing) {
    if (speaks_for_model(role) || !known_role(role)) return;
    fail_argument("{}: role \"{}\" needs content, got {}", place, role,
                  content == message.end() ? "none" : "null");
  }
  if (content->is_string()) return;
  const bool tool_result = role == "tool" || role == "function" || !known_role(role);
  const bool typed = content->is_array() &&
                     std::all_of(content->begin(), content->end(), [](const OrderedJson& part) {
                       return part.is_object() && part.contains("type");
                     });
  if (tool_result && (content->is_object() || (content->is_array() && !typed))) return;
  if (!content->is_array()) {
    fail_argument("{}.content: expected a string or a list of parts, got {}", place,
                  kind_of(*content));
  }
  check_parts(*content, place);
  if (!abilities.content_parts) *content = joined_parts(*content, place);
}

// Arguments as the template reads them.
void prepare_arguments(OrderedJson& function, const std::string& place, bool as_text) {
  const auto arguments = function.find("arguments");
  if (arguments == function.end()) return;
  if (arguments->is_null()) *arguments = OrderedJson::object();
  if (arguments->is_string()) {
    const std::string text = arguments->get<std::string>();
    OrderedJson parsed = text.find_first_not_of(" \t\r\n") == std::string::npos
                             ? OrderedJson::object()
                             : parse_ordered_json(text, place + ".arguments");
    if (!parsed.is_object()) {
      fail_argument("{}.arguments: expected JSON text of an object, got {}", place,
                    kind_of(parsed));
    }
    if (!as_text || text.empty()) *arguments = std::move(parsed);
  } else if (!arguments->is_object()) {
    fail_argument("{}.arguments: expected an object or its JSON text, got {}", place,
                  kind_of(*arguments));
  }
  if (as_text && arguments->is_object()) {
    *arguments = arguments->dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }
}

void prepare_tool_calls(OrderedJson& message, const std::string& place, bool as_text) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return;
  if (!calls->is_array()) {
    fail_argument("{}.tool_calls: expected a list, got {}", place, kind_of(*calls));
  }
  for (size_t i = 0; i < calls->size(); ++i) {
    OrderedJson& call = (*calls)[i];
    const std::string where = fmt::format("{}.tool_calls[{}]", place, i);
    if (!call.is_object()) fail_argument("{}: expected an object, got {}", where, kind_of(call));
    const bool nested = call.contains("function");
    OrderedJson& function = nested ? call["function"] : call;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) {
      fail_argument("{}: expected a function with a string \"name\"", where);
    }
    prepare_arguments(function, nested ? where + ".function" : where, as_text);
  }
}

// Templates read earlier thinking under several names; each gets the first that is there.
void alias_reasoning(OrderedJson& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto found = message.find(name);
    if (found == message.end() || found->is_null()) continue;
    const OrderedJson reasoning = *found;
    if (!message.contains("thinking")) message["thinking"] = reasoning;
    message["reasoning_content"] = reasoning;
    return;
  }
}

}  // namespace

bool known_role(std::string_view role) {
  return std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end();
}

OrderedJson prepare_messages(const OrderedJson& messages, const TemplateAbilities& abilities) {
  if (!messages.is_array()) {
    fail_argument("messages: expected a list, got {}", kind_of(messages));
  }
  if (messages.empty()) fail_argument("messages: expected at least one message, got none");
  OrderedJson prepared = messages;
  for (size_t i = 0; i < prepared.size(); ++i) {
    OrderedJson& message = prepared[i];
    const std::string place = fmt::format("messages[{}]", i);
    if (!message.is_object()) {
      fail_argument("{}: expected an object, got {}", place, kind_of(message));
    }
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string() ||
        role->get_ref<const std::string&>().empty()) {
      fail_argument("{}: expected a string \"role\", got {}", place,
                    role == message.end() ? "none" : kind_of(*role));
    }
    const std::string name = role->get<std::string>();
    prepare_content(message, name, place, abilities);
    prepare_tool_calls(message, place, abilities.arguments_as_text);
    alias_reasoning(message);
  }
  return prepared;
}

OrderedJson prepare_tools(const OrderedJson& tools) {
  if (tools.is_null()) return nullptr;
  if (!tools.is_array()) fail_argument("tools: expected a list, got {}", kind_of(tools));
  for (size_t i = 0; i < tools.size(); ++i) {
    if (!tools[i].is_object()) {
      fail_argument("tools[{}]: expected an object, got {}", i, kind_of(tools[i]));
    }
  }
  return tools.empty() ? OrderedJson(nullptr) : tools;
}

OrderedJson prepare_extra(const ChatRequest& request) {
  OrderedJson extra = request.extra.is_null() ? OrderedJson::object() : request.extra;
  if (!extra.is_object()) {
    fail_argument("template variables: expected an object, got {}", kind_of(extra));
  }
  for (const char* name : {"messages", "tools", "add_generation_prompt"}) {
    if (extra.contains(name)) {
      fail_argument("template variables: \"{}\" belongs in the request itself", name);
    }
  }
  const auto thinking = extra.find("enable_thinking");
  if (thinking != extra.end()) {
    if (!thinking->is_boolean()) {
      fail_argument("enable_thinking: expected true or false, got {}",
                    thinking->dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
    }
    if (request.enable_thinking && *request.enable_thinking != thinking->get<bool>()) {
      fail_argument("enable_thinking: given twice, as {} and as {}", *request.enable_thinking,
                    thinking->get<bool>());
    }
  }
  if (request.enable_thinking) extra["enable_thinking"] = *request.enable_thinking;
  return extra;
}

}  // namespace coppice
