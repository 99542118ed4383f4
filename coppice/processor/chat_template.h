// Chat templates: a conversation to the text of a prompt, as the model's own Jinja template says.
//
// The result tells which of its bytes are the user's (RenderedPrompt::plain), so that the tokenizer
// reads control tokens only in what the template itself wrote: "<|im_end|>" typed by a user, or
// returned by a tool, stays text. Follows the rendering of Jinja2 that the Hugging Face libraries
// set up (trim_blocks, lstrip_blocks, immutable sandbox, their tojson and strftime_now).
//
// Differs from it on purpose:
//  - an assistant turn whose content is null or missing renders as empty text, never as "None", and
//    does not fail; `is none` and `is defined` still answer as they would;
//  - tool-call arguments may be a JSON string or an object; the template gets the form that it
//    handles (found by trial when it is compiled). A string that is not a JSON object is an Error;
//  - content given as a list of text parts is joined with "\n" where the template reads only
//    strings; an empty list of tools counts as none;
//  - numbers above 64 bits, named characters (\N{...}), {% include %}, {% import %} and template
//    inheritance are not supported.
// Immutable after construction; render() may be called from several threads at once.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/processor/text_range.h"

namespace coppice {

// Keeps the order of keys: tools are printed in the order in which they were written.
using OrderedJson = nlohmann::ordered_json;

// As parse_json (core/json.h), with the order of keys kept.
OrderedJson parse_ordered_json(std::string_view text, std::string_view what);

struct RenderedPrompt {
  std::string text;
  std::vector<TextRange> plain;  // bytes that are user data, sorted and merged
};

struct ChatRequest {
  // A list of {role, content, ...}. The roles system, developer, user, assistant, tool, function,
  // and model count as the template's own words; other roles are user data.
  OrderedJson messages;
  OrderedJson tools;  // a list of tool definitions, or null
  bool add_generation_prompt = true;
  std::optional<bool> enable_thinking;  // absent: the template's default
  OrderedJson extra;                    // more variables for the template: an object, or null
};

struct ChatTemplateOptions {
  // Variables with the text of special tokens: {"bos_token", "<s>"}, {"eos_token", "</s>"}, ...
  std::map<std::string, std::string> special_tokens;
  // The local time for strftime_now; by default that of the machine.
  std::function<std::tm()> clock;
  // Nodes that one render may evaluate; a template that goes over is an Error.
  int64_t max_steps = 20'000'000;
};

class ChatTemplate final {
 public:
  // Throws kInvalidArgument with the line when `source` is not a template.
  explicit ChatTemplate(std::string_view source, const ChatTemplateOptions& options = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Throws kInvalidArgument: for a request that is malformed, with the place in it ("messages[2]
  // ..."); for one that the template refuses, with the template's own text; and for a template that
  // fails or does not end, with its line.
  RenderedPrompt render(const ChatRequest& request) const;

  std::string_view source() const;
  // Whether the template reads content given as a list of parts.
  bool reads_content_parts() const;
  // Whether it wants tool-call arguments as JSON text rather than as an object.
  bool reads_arguments_as_text() const;

 private:
  struct Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

// The ChatML format, for models that declare no template. The caller says so when it uses it.
extern const std::string_view kChatmlTemplate;
// Whether the fallback fits a vocabulary: it has both tokens of ChatML. `has_token` tells whether
// the vocabulary holds exactly this control token.
bool chatml_fits(const std::function<bool(std::string_view)>& has_token);

}  // namespace coppice
