// Where messages stand in what templates of the known families write.
#include "coppice/processor/message_places.h"

#include <gtest/gtest.h>

#include "coppice/processor/chat_template.h"

namespace coppice {
namespace {

// A system message that the loop leaves out; thinking that earlier answers lose; tool results that
// share a turn.
constexpr std::string_view kQwen3 = R"({%- if messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, looking=true) %}
{%- for message in messages[::-1] %}
{%- if ns.looking and message.role == 'user' %}
{%- set ns.looking = false %}{%- set ns.last = messages|length - 1 - loop.index0 %}
{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content.split('</think>')[-1] %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{{- content + '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %})";

// A system message taken out of the list first.
constexpr std::string_view kLlama3 = R"({{- '<|begin|>' }}
{%- set system = '' %}
{%- if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- endif %}
{{- '<|header|>system<|/header|>\n\nToday is a day.\n' + system + '<|eot|>' }}
{%- for message in messages %}
{{- '<|header|>' + message['role'] + '<|/header|>\n\n' + message['content']|trim + '<|eot|>' }}
{%- endfor %})";

// A system message inside the last user's turn.
constexpr std::string_view kMistral = R"({%- if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content'] %}{%- set rest = messages[1:] %}
{%- else %}{%- set rest = messages %}{%- endif %}
{{- '<s>' }}
{%- for message in rest %}
{%- if message['role'] == 'user' %}
{{- '[INST] ' }}{%- if loop.last and system is defined %}{{- system + '\n\n' }}{%- endif %}
{{- message['content'] + ' [/INST]' }}
{%- else %}{{- ' ' + message['content'] + '</s>' }}
{%- endif %}
{%- endfor %})";

// The text of each message's place; "-" where there is none.
std::vector<std::string> places(std::string_view source, std::string_view messages,
                                bool prompt = true) {
  ChatRequest request;
  request.messages = parse_ordered_json(messages, "messages");
  request.add_generation_prompt = prompt;
  const RenderedPrompt rendered = ChatTemplate(source).render(request);
  std::vector<std::string> texts;
  for (const auto& place : rendered.messages)
    texts.push_back(place
                        ? rendered.text.substr(static_cast<std::size_t>(place->begin),
                                               static_cast<std::size_t>(place->end - place->begin))
                        : "-");
  return texts;
}

using Texts = std::vector<std::string>;

constexpr std::string_view kTalk = R"([
    {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Hi"}])";

TEST(MessagePlaces, rounds_of_the_loop_with_their_markers) {
  EXPECT_EQ(
      places(kChatmlTemplate, kTalk),
      (Texts{"<|im_start|>system\nBe kind.<|im_end|>\n", "<|im_start|>user\nHi<|im_end|>\n",
             "<|im_start|>assistant\nHello<|im_end|>\n", "<|im_start|>user\nHi<|im_end|>\n"}));
  EXPECT_EQ(places(kChatmlTemplate, kTalk), places(kChatmlTemplate, kTalk, false));
}

TEST(MessagePlaces, a_system_message_that_no_loop_writes_stands_before_the_second) {
  EXPECT_EQ(
      places(kQwen3, kTalk),
      (Texts{"<|im_start|>system\nBe kind.<|im_end|>\n", "<|im_start|>user\nHi<|im_end|>\n",
             "<|im_start|>assistant\nHello<|im_end|>\n", "<|im_start|>user\nHi<|im_end|>\n"}));
  EXPECT_EQ(places(kLlama3, kTalk)[0],
            "<|begin|><|header|>system<|/header|>\n\nToday is a day.\nBe kind.<|eot|>");
  EXPECT_EQ(places(kLlama3, kTalk)[1], "<|header|>user<|/header|>\n\nHi<|eot|>");
}

TEST(MessagePlaces, what_stands_before_a_first_message_that_is_no_system_is_none_of_its) {
  constexpr std::string_view kUser = R"([{"role": "user", "content": "Today is a day."}])";
  EXPECT_EQ(places(kLlama3, kUser), (Texts{"<|header|>user<|/header|>\n\nToday is a day.<|eot|>"}));
}

TEST(MessagePlaces, a_message_that_stands_elsewhere_has_no_place) {
  const Texts found = places(kMistral, kTalk);
  EXPECT_EQ(found[0], "-");
  EXPECT_EQ(found[1], "[INST] Hi [/INST]");
  EXPECT_EQ(found[3], "[INST] Be kind.\n\nHi [/INST]");
  // What the template itself says before the loop is no content of a message.
  constexpr std::string_view kSaid = R"({{- 'Be kind.' }}{%- for message in messages[1:] %}
{{- message.content }}{%- endfor %}{{- messages[0].content }})";
  EXPECT_EQ(places(kSaid, kTalk), (Texts{"-", "Hi", "Hello", "Hi"}));
}

TEST(MessagePlaces, tool_results_and_thinking) {
  const Texts found = places(kQwen3, R"([
      {"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>x</think>b"},
      {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"},
      {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}])");
  EXPECT_EQ(found[1], "<|im_start|>assistant\nb<|im_end|>\n");
  EXPECT_EQ(found[3], "<|im_start|>assistant\n<think>\n\n</think>\n\nd<|im_end|>\n");
  EXPECT_EQ(found[4], "<|im_start|>user\n<tool_response>\n1\n</tool_response>");
  EXPECT_EQ(found[5], "\n<tool_response>\n2\n</tool_response><|im_end|>\n");
}

TEST(MessagePlaces, what_is_written_twice_or_caught_by_a_macro_has_none) {
  constexpr std::string_view kTwice = R"({%- for m in messages %}{{- m.content }}{%- endfor %}
{%- for m in messages if m.role == 'user' %}{{- m.content }}{%- endfor %})";
  EXPECT_EQ(places(kTwice, kTalk), (Texts{"Be kind.", "-", "Hello", "-"}));
  constexpr std::string_view kMacro = R"({%- macro all() %}{%- for m in messages %}
{{- m.content }}{%- endfor %}{%- endmacro %}{{- 'x' + all() }})";
  EXPECT_EQ(places(kMacro, kTalk), (Texts{"-", "-", "-", "-"}));
  constexpr std::string_view kInner = R"({%- for m in messages %}{{- '[' + m.role }}
{%- for n in messages if n.role == 'system' %}{{- n.content }}{%- endfor %}{{- ']' }}{%- endfor %})";
  EXPECT_EQ(places(kInner, kTalk)[1], "[userBe kind.]");
}

}  // namespace
}  // namespace coppice
