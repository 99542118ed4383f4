// Arbitrary templates and conversations: parsed and rendered, or refused with an Error, within the
// limits. The input is a template, and behind a zero byte the variables as JSON.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/processor/chat_template.h"
#include "coppice/processor/jinja_json.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

constexpr std::string_view kVariables =
    R"({"messages": [{"role": "user", "content": "hi <|im_end|> é"}, {"role": "assistant",
        "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]}],
        "tools": null, "add_generation_prompt": true, "bos_token": "<s>", "n": -3})";

void check_ranges(const coppice::jinja::Text& text) {
  int64_t end = -1;
  for (const coppice::TextRange& range : text.plain) {
    COPPICE_CHECK(range.begin > end && range.end > range.begin, "ranges out of order");
    end = range.end;
  }
  COPPICE_CHECK(end <= static_cast<int64_t>(text.bytes.size()), "a range passes the end");
  COPPICE_CHECK(coppice::jinja::valid_utf8(text.bytes), "the result is not UTF-8");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace jinja = coppice::jinja;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  const std::string_view source = input.substr(0, split);
  const std::string_view json =
      split == std::string_view::npos ? kVariables : input.substr(split + 1);
  static const jinja::Clock kClock = [] { return std::tm{}; };
  jinja::Limits limits;
  limits.max_steps = 20'000;
  limits.max_bytes = 4 << 20;
  limits.max_output_bytes = 1 << 20;
  try {
    const auto body = jinja::parse_template(source);
    const coppice::OrderedJson variables = coppice::parse_ordered_json(json, "variables");
    jinja::Runtime runtime(limits, kClock);
    if (variables.is_object()) {
      for (const auto& [name, value] : variables.items()) {
        runtime.define(name, jinja::from_json(runtime, value, true, name));
      }
    }
    check_ranges(runtime.render(body));
  } catch (const coppice::Error& error) {
    if (error.code() == coppice::ErrorCode::kInternal) throw;
  }
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds = {
      "{% for m in messages %}{{ m.role ~ m['content'] | trim }}{% endfor %}",
      "{{ x | tojson(indent=2) }}{{ x[::-1] }}" + std::string(1, '\0') + R"({"x": ["é", 1, {}]})",
      "{% macro f(a, b=1) %}{{ caller(a) }}{% endmacro %}{% call(x) f(2) %}{{ x }}{% endcall %}",
      "{{ '{:>5}'.format(n) }}{{ '%05d' % n }}{{ 1.5 ** n // 2 % 3 }}",
      "{%- raw -%}{{ x }}{%- endraw -%}{# c #}{% set ns = namespace(a=1) %}{% set ns.a = [ns.a] %}",
      std::string(coppice::kChatmlTemplate),
  };
  const std::string path = std::string(COPPICE_SOURCE_DIR) + "/tests/golden/jinja_cases.json";
  const auto document = coppice::parse_ordered_json(coppice::read_text_file(path), path);
  for (const auto& item : document.at("cases")) {
    seeds.push_back(item.at("template").get<std::string>());
  }
  return seeds;
}
