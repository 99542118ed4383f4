#include "coppice/processor/chat_template.h"

#include <utility>

#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "coppice/processor/chat_template_request.h"
#include "coppice/processor/jinja_ast.h"
#include "coppice/processor/jinja_json.h"

namespace coppice {
namespace {

using jinja::Runtime;
using jinja::Value;

constexpr int64_t kTrialSteps = 100'000;

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

// One message. A known role is the template's own word; an absent content is soft where the model
// speaks.
Value message_value(Runtime& runtime, const OrderedJson& message, const std::string& place) {
  const std::string& role = message.at("role").get_ref<const std::string&>();
  Value value = jinja::from_json(runtime, message, true, place);
  jinja::DictObject& dict = value.dict();
  if (known_role(role)) dict.set(Value::string("role"), Value::string(role));
  const Value* content = dict.find("content");
  if (content == nullptr) dict.soft_content = true;
  if (content != nullptr && content->is_none()) {
    Value soft = Value::none();
    soft.soft = true;
    dict.set(Value::string("content"), std::move(soft));
  }
  return value;
}

Value messages_value(Runtime& runtime, const OrderedJson& messages) {
  std::vector<Value> items;
  for (size_t i = 0; i < messages.size(); ++i) {
    items.push_back(message_value(runtime, messages[i], fmt::format("messages[{}]", i)));
  }
  return runtime.list(std::move(items));
}

}  // namespace

const std::string_view kChatmlTemplate =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

bool chatml_fits(const std::function<bool(std::string_view)>& has_token) {
  return has_token("<|im_start|>") && has_token("<|im_end|>");
}

OrderedJson parse_ordered_json(std::string_view text, std::string_view what) {
  parse_json(text, what);  // checks syntax, depth and UTF-8
  return OrderedJson::parse(text);
}

struct ChatTemplate::Compiled {
  std::string source;
  std::vector<jinja::NodePtr> body;
  ChatTemplateOptions options;
  TemplateAbilities abilities;

  RenderedPrompt render(const OrderedJson& messages, const OrderedJson& tools,
                        const OrderedJson& extra, bool add_generation_prompt,
                        int64_t max_steps) const {
    jinja::Limits limits;
    limits.max_steps = max_steps;
    Runtime runtime(limits, options.clock);
    for (const auto& [name, text] : options.special_tokens) {
      runtime.define(name, Value::string(text));
    }
    runtime.define("documents", Value::none());
    for (const auto& [name, value] : extra.items()) {
      runtime.define(name, jinja::from_json(runtime, value, true, name));
    }
    runtime.define("messages", messages_value(runtime, messages));
    runtime.define("tools", jinja::from_json(runtime, tools, true, "tools"));
    runtime.define("add_generation_prompt", Value::of(add_generation_prompt));
    jinja::Text text = runtime.render(body);
    return {std::move(text.bytes), std::move(text.plain)};
  }

  // The text of a trial conversation; nothing where the template fails on it.
  std::optional<std::string> trial(const OrderedJson& messages, const OrderedJson& tools) const {
    try {
      return render(messages, tools, OrderedJson::object(), false, kTrialSteps).text;
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  bool trial_parts() const {
    const std::string mark = "trial content";
    const OrderedJson part = {{"type", "text"}, {"text", mark}};
    const OrderedJson parts = OrderedJson::array({part});
    const auto with = [&](const OrderedJson& content) {
      OrderedJson message = {{"role", "user"}, {"content", content}};
      return trial(OrderedJson::array({message}), nullptr);
    };
    const auto from_string = with(mark);
    return from_string && with(parts) == from_string;
  }

  bool trial_arguments_as_text() const {
    const OrderedJson parameters = {{"type", "object"},
                                    {"properties", {{"trial_key", {{"type", "string"}}}}}};
    const OrderedJson tool = {
        {"type", "function"},
        {"function",
         {{"name", "trial_tool"}, {"description", "A trial."}, {"parameters", parameters}}}};
    const OrderedJson arguments = {{"trial_key", "trial value"}};
    const auto with = [&](const OrderedJson& form) {
      const OrderedJson function = {{"name", "trial_tool"}, {"arguments", form}};
      const OrderedJson call = {{"id", "call00001"}, {"type", "function"}, {"function", function}};
      OrderedJson messages = OrderedJson::array();
      messages.push_back({{"role", "user"}, {"content", "A question."}});
      messages.push_back(
          {{"role", "assistant"}, {"content", ""}, {"tool_calls", OrderedJson::array({call})}});
      messages.push_back({{"role", "tool"},
                          {"tool_call_id", "call00001"},
                          {"name", "trial_tool"},
                          {"content", "A result."}});
      return trial(messages, OrderedJson::array({tool}));
    };
    const auto from_object = with(arguments);
    const bool prints_object =
        from_object && from_object->find("{'trial_key'") == std::string::npos;
    if (prints_object) return false;
    const auto from_text = with(arguments.dump());
    return from_text && from_text->find("trial value") != std::string::npos;
  }
};

ChatTemplate::ChatTemplate(std::string_view source, const ChatTemplateOptions& options) {
  auto compiled = std::make_unique<Compiled>();
  compiled->source = source;
  compiled->body = jinja::parse_template(source);
  compiled->options = options;
  if (!compiled->options.clock) compiled->options.clock = local_time;
  for (const auto& [name, text] : options.special_tokens) {
    if (!jinja::valid_utf8(text)) fail_argument("{}: not valid UTF-8", name);
  }
  compiled->abilities.content_parts = compiled->trial_parts();
  compiled->abilities.arguments_as_text = compiled->trial_arguments_as_text();
  compiled_ = std::move(compiled);
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

RenderedPrompt ChatTemplate::render(const ChatRequest& request) const {
  const OrderedJson messages = prepare_messages(request.messages, compiled_->abilities);
  const OrderedJson tools = prepare_tools(request.tools);
  const OrderedJson extra = prepare_extra(request);
  return compiled_->render(messages, tools, extra, request.add_generation_prompt,
                           compiled_->options.max_steps);
}

std::string_view ChatTemplate::source() const { return compiled_->source; }

bool ChatTemplate::reads_content_parts() const { return compiled_->abilities.content_parts; }

bool ChatTemplate::reads_arguments_as_text() const {
  return compiled_->abilities.arguments_as_text;
}

}  // namespace coppice
