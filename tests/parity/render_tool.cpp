// Renders templates for template_parity.py: one JSON request a line on stdin, one JSON answer a
// line on stdout ({"text", "plain"} or {"error"}).
//
//   {"mode": "raw", "source", "variables"}: the interpreter alone, all variables as user data
//   {"mode": "chat", "source", "special_tokens", "messages", "tools", "add_generation_prompt",
//    "extra"}: ChatTemplate; the answer holds "arguments_as_text" and "content_parts" as well, and
//    "places": of each message [begin, end] in the text, or null
// The clock stands at 2025-03-09 14:05:07.
#include <iostream>
#include <string>

#include "coppice/core/error.h"
#include "coppice/processor/chat_template.h"
#include "coppice/processor/jinja_json.h"

namespace {

using coppice::OrderedJson;

std::tm fixed_time() {
  std::tm time{};
  time.tm_year = 125;
  time.tm_mon = 2;
  time.tm_mday = 9;
  time.tm_hour = 14;
  time.tm_min = 5;
  time.tm_sec = 7;
  time.tm_wday = 0;
  time.tm_yday = 67;
  return time;
}

void put(OrderedJson& answer, const std::string& text,
         const std::vector<coppice::TextRange>& plain) {
  answer["text"] = text;
  answer["plain"] = OrderedJson::array();
  for (const auto& range : plain) answer["plain"].push_back({range.begin, range.end});
}

void render_raw(const OrderedJson& request, OrderedJson& answer) {
  namespace jinja = coppice::jinja;
  const auto body = jinja::parse_template(request.at("source").get<std::string>());
  const jinja::Clock clock = fixed_time;
  jinja::Runtime runtime(jinja::Limits{}, clock);
  for (const auto& [name, value] : request.at("variables").items()) {
    runtime.define(name, jinja::from_json(runtime, value, true, name));
  }
  const jinja::Text text = runtime.render(body);
  put(answer, text.bytes, text.plain);
}

void render_chat(const OrderedJson& request, OrderedJson& answer) {
  coppice::ChatTemplateOptions options;
  options.clock = fixed_time;
  for (const auto& [name, value] : request.at("special_tokens").items()) {
    options.special_tokens[name] = value.get<std::string>();
  }
  const coppice::ChatTemplate chat(request.at("source").get<std::string>(), options);
  answer["arguments_as_text"] = chat.reads_arguments_as_text();
  answer["content_parts"] = chat.reads_content_parts();
  coppice::ChatRequest chat_request;
  chat_request.messages = request.at("messages");
  chat_request.tools = request.at("tools");
  chat_request.add_generation_prompt = request.at("add_generation_prompt").get<bool>();
  chat_request.extra = request.at("extra");
  const coppice::RenderedPrompt prompt = chat.render(chat_request);
  put(answer, prompt.text, prompt.plain);
  answer["places"] = OrderedJson::array();
  for (const auto& place : prompt.messages) {
    answer["places"].push_back(place ? OrderedJson({place->begin, place->end}) : OrderedJson());
  }
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    OrderedJson answer = OrderedJson::object();
    try {
      const OrderedJson request = coppice::parse_ordered_json(line, "request");
      if (request.at("mode") == "raw") {
        render_raw(request, answer);
      } else {
        render_chat(request, answer);
      }
    } catch (const std::exception& error) {
      answer["error"] = error.what();
    }
    std::cout << answer.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) << '\n'
              << std::flush;
  }
  return 0;
}
