#include "coppice/server/requests.h"

#include <limits>

#include "coppice/server/api_error.h"
#include "coppice/server/fields.h"
#include "coppice/server/image_parts.h"
#include "coppice/server/text.h"

namespace coppice {
namespace {

constexpr int64_t kMostId = std::numeric_limits<int32_t>::max();
constexpr int64_t kDefaultCompletionTokens = 16;  // as in OpenAI's API

// Text and pictures: parts of other kinds would reach a template that writes markers for them.
void check_content(const Json& messages) {
  if (!messages.is_array()) refuse_field("messages", "expected a list of messages");
  if (messages.empty()) refuse_field("messages", "expected at least one message, got none");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    if (!message.is_object() || !message.contains("content")) continue;
    const Json& content = message["content"];
    if (!content.is_array()) continue;
    for (const Json& part : content) {
      const bool known = part.is_object() && part.contains("type") &&
                         (part["type"] == "text" || part["type"] == "image_url");
      if (!known) {
        refuse_field(fmt::format("messages[{}].content", i),
                     "expected parts of type \"text\" or \"image_url\"");
      }
    }
  }
}

// Arguments of earlier tool calls are JSON in a string: the limits of the body hold for them too.
void check_arguments(const Json& messages) {
  for (const Json& message : messages) {
    if (!message.is_object() || !message.contains("tool_calls")) continue;
    for (const Json& call : message["tool_calls"]) {
      if (!call.is_object()) continue;
      const Json& function = call.contains("function") ? call["function"] : call;
      if (!function.is_object() || !function.contains("arguments")) continue;
      const Json& arguments = function["arguments"];
      if (!arguments.is_string()) continue;
      const std::string& text = arguments.get_ref<const std::string&>();
      if (text.find_first_not_of(" \t\r\n") == std::string::npos) continue;
      try {
        parse_body(text);
      } catch (const Error& error) {
        refuse_field("messages", "the arguments of a tool call are not a JSON object ({})",
                     error.what());
      }
    }
  }
}

void check_tools(const Json& tools) {
  if (!tools.is_array()) refuse_field("tools", "expected a list");
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string place = fmt::format("tools[{}]", i);
    Fields tool(tools[i], place);
    if (tool.text("type") != "function") refuse_field(place + ".type", "expected \"function\"");
    const Json* object = tool.find("function");
    if (object == nullptr) refuse_field(place + ".function", "is required");
    tool.finish();
    Fields function(*object, place + ".function");
    const Json* name = function.find("name");
    if (name == nullptr || !name->is_string() ||
        !is_plain_name(name->get_ref<const std::string&>())) {
      refuse_field(place + ".function.name", "expected 1 to 64 letters, digits, _ and -");
    }
    function.text("description");
    const Json* parameters = function.find("parameters");
    if (parameters != nullptr && !parameters->is_object()) {
      refuse_field(place + ".function.parameters", "expected an object");
    }
    if (function.boolean("strict").value_or(false)) {
      refuse_field(place + ".function.strict", "arguments cannot be held to a schema here");
    }
    function.finish();
  }
}

// The tools that the model is shown: none with tool_choice "none".
void read_tools(Fields& fields, OrderedJson& ordered, ChatRequest& chat) {
  const Json* tools = fields.find("tools");
  if (tools != nullptr) check_tools(*tools);
  const bool any = tools != nullptr && !tools->empty();
  const Json* choice = fields.find("tool_choice");
  if (choice != nullptr && *choice != "none" && *choice != "auto") {
    refuse_field("tool_choice",
                 "expected \"auto\" or \"none\": that a model calls a tool cannot be promised");
  }
  if (choice != nullptr && *choice == "auto" && !any) {
    refuse_field("tool_choice", "goes with tools alone");
  }
  if (!fields.boolean("parallel_tool_calls").value_or(true)) {
    refuse_field("parallel_tool_calls", "that a model makes one call alone cannot be promised");
  }
  if (any && (choice == nullptr || *choice == "auto")) {
    chat.tools = std::move(ordered["tools"]);
  }
}

// Keys of messages keep the order in which they were written.
ChatRequest read_messages(Fields& fields, std::string_view body, std::vector<std::string>& images) {
  const Json* messages = fields.find("messages");
  if (messages == nullptr) refuse_field("messages", "is required");
  check_content(*messages);
  check_arguments(*messages);
  ChatRequest chat;
  OrderedJson ordered = parse_ordered_json(body, "request body");
  chat.messages = std::move(ordered["messages"]);
  images = take_images(chat.messages);
  if (const Json* extra = fields.find("chat_template_kwargs")) {
    if (!extra->is_object()) refuse_field("chat_template_kwargs", "expected an object");
    chat.extra = std::move(ordered["chat_template_kwargs"]);
  }
  read_tools(fields, ordered, chat);
  return chat;
}

// Either `prompt`, or the chat of `messages`.
std::optional<ChatRequest> read_text(Fields& fields, std::string_view body,
                                     std::optional<std::string>& prompt,
                                     std::vector<std::string>& images) {
  prompt = fields.text("prompt");
  if (fields.has("messages")) {
    if (prompt) refuse_field("messages", "give either prompt or messages");
    return read_messages(fields, body, images);
  }
  if (!prompt) refuse_field("prompt", "is required, or messages");
  return std::nullopt;
}

std::vector<int32_t> read_ids(const Json& list, const std::string& name) {
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    ids.push_back(static_cast<int32_t>(read_integer(id, name, 0, kMostId)));
  }
  return ids;
}

// A string, a list of strings, a list of token ids, or a list of such lists.
std::vector<CompletionPrompt> read_prompts(Fields& fields) {
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) refuse_field("prompt", "is required");
  if (prompt->is_string()) return {prompt->get<std::string>()};
  if (!prompt->is_array() || prompt->empty()) {
    refuse_field("prompt", "expected a string, token ids, or a list of either that is not empty");
  }
  if (!prompt->front().is_string() && !prompt->front().is_array()) {
    return {read_ids(*prompt, "prompt")};
  }
  std::vector<CompletionPrompt> prompts;
  for (const Json& item : *prompt) {
    if (item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else if (item.is_array()) {
      prompts.emplace_back(read_ids(item, "prompt"));
    } else {
      refuse_field("prompt", "expected strings or lists of token ids");
    }
  }
  return prompts;
}

void read_chat_logprobs(Fields& fields, SamplingParams& sampling) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && !wanted) refuse_field("top_logprobs", "goes with logprobs: true alone");
  if (wanted) sampling.logprobs = top.value_or(0);
}

}  // namespace

ChatBody read_chat_body(std::string_view body) {
  const Json object = parse_body(body);
  Fields fields(object);
  ChatBody result;
  result.model = fields.text("model");
  result.chat = read_messages(fields, body, result.images);
  result.generation = read_generation(fields);
  read_chat_logprobs(fields, result.generation.sampling);
  fields.expect_only("response_format", {{"type", "text"}});
  fields.expect_only("modalities", Json::array({"text"}));
  fields.finish();
  return result;
}

CompletionBody read_completion_body(std::string_view body) {
  const Json object = parse_body(body);
  Fields fields(object);
  CompletionBody result;
  result.model = fields.text("model");
  result.prompts = read_prompts(fields);
  result.generation = read_generation(fields);
  if (result.generation.trace) refuse_field("kv.trace", "goes with chat completions alone");
  if (!result.generation.kv.keep.empty()) refuse_field("kv.keep", "goes with messages alone");
  if (!result.generation.kv.mark.empty()) refuse_field("kv.mark", "goes with messages alone");
  SamplingParams& sampling = result.generation.sampling;
  if (!sampling.max_tokens) sampling.max_tokens = kDefaultCompletionTokens;
  sampling.logprobs = fields.integer("logprobs", 0, kMaxTopLogprobs);
  result.echo = fields.boolean("echo").value_or(false);
  fields.expect_only("best_of", result.generation.n);
  fields.expect_only("suffix", "");
  fields.finish();
  const auto prompts = static_cast<int64_t>(result.prompts.size());
  if (prompts > kMaxChoices / result.generation.n) {
    refuse_field("n", "{} prompts with {} choices each; at most {} choices in all", prompts,
                 result.generation.n, kMaxChoices);
  }
  return result;
}

TokenizeBody read_tokenize_body(std::string_view body) {
  const Json object = parse_body(body);
  Fields fields(object);
  TokenizeBody result;
  result.model = fields.text("model");
  result.chat = read_text(fields, body, result.prompt, result.images);
  if (result.chat) {
    result.chat->add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  } else {
    result.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  }
  fields.finish();
  return result;
}

SessionBody read_session_body(std::string_view body) {
  const Json object = parse_body(body);
  Fields fields(object);
  SessionBody result;
  const auto name = fields.text("name");
  if (!name) refuse_field("name", "is required");
  result.name = *name;
  result.model = fields.text("model");
  std::vector<std::string> images;
  result.chat = read_text(fields, body, result.prompt, images);
  if (!images.empty()) refuse_field("messages", "a session with pictures cannot be saved");
  if (result.chat) result.chat->add_generation_prompt = false;
  Generation generation;
  read_kv(fields, generation);
  result.kv = generation.kv;
  if (result.kv.min_budget) refuse_field("kv.min_budget", "a saved session has one budget");
  if (!result.chat && !result.kv.keep.empty()) refuse_field("kv.keep", "goes with messages alone");
  if (!result.kv.mark.empty()) refuse_field("kv.mark", "a session is kept whole");
  if (result.kv.budget && result.kv.budget->unit == KvBudget::Unit::kShare) {
    refuse_field("kv.budget",
                 "a share of the text changes with every turn; a session needs a fixed budget");
  }
  fields.finish();
  return result;
}

DetokenizeBody read_detokenize_body(std::string_view body) {
  const Json object = parse_body(body);
  Fields fields(object);
  DetokenizeBody result;
  result.model = fields.text("model");
  const Json* tokens = fields.find("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    refuse_field("tokens", "expected a list of token ids");
  }
  result.tokens = read_ids(*tokens, "tokens");
  fields.finish();
  return result;
}

}  // namespace coppice
