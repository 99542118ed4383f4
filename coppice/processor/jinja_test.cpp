// The interpreter against what Jinja2 made of the same templates (tests/golden/jinja_cases.json,
// written by tools/make_template_golden.py), its limits, and provenance.
#include <gtest/gtest.h>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/processor/chat_template.h"
#include "coppice/processor/jinja_json.h"

namespace coppice::jinja {
namespace {

const Clock kClock = [] {
  std::tm time{};
  time.tm_year = 125;
  time.tm_mon = 2;
  time.tm_mday = 9;
  return time;
};

Text render(std::string_view source, const OrderedJson& variables, bool plain = true,
            const Limits& limits = {}) {
  const auto body = parse_template(source);
  Runtime runtime(limits, kClock);
  for (const auto& [name, value] : variables.items()) {
    runtime.define(name, from_json(runtime, value, plain, name));
  }
  return runtime.render(body);
}

std::string message_of(std::string_view source, const Limits& limits = {}) {
  try {
    render(source, OrderedJson::object(), true, limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

// The bytes that are user data, each range in brackets.
std::string marked(const Text& text) {
  std::string out;
  int64_t at = 0;
  for (const TextRange& range : text.plain) {
    EXPECT_LE(at, range.begin);
    EXPECT_LT(range.begin, range.end);
    out += text.bytes.substr(at, range.begin - at);
    out += "[" + text.bytes.substr(range.begin, range.end - range.begin) + "]";
    at = range.end;
  }
  return out + text.bytes.substr(at);
}

TEST(Jinja, equals_jinja2_on_every_golden_case) {
  const std::string path = std::string(COPPICE_SOURCE_DIR) + "/tests/golden/jinja_cases.json";
  const OrderedJson document = parse_ordered_json(read_text_file(path), path);
  ASSERT_GE(document.at("cases").size(), 200u);
  for (const auto& item : document.at("cases")) {
    const std::string source = item.at("template").get<std::string>();
    SCOPED_TRACE(item.at("group").get<std::string>() + ": " + source);
    try {
      const Text text = render(source, document.at("variables"));
      if (item.contains("fails")) {
        ADD_FAILURE() << "expected an Error, got: " << text.bytes;
      } else {
        EXPECT_EQ(text.bytes, item.at("text").get<std::string>());
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      if (!item.contains("fails")) ADD_FAILURE() << error.what();
    }
  }
}

TEST(Jinja, messages_name_the_line) {
  EXPECT_EQ(message_of("\n\n{{ missing.x }}"), "chat template, line 3: 'missing' is undefined");
  EXPECT_EQ(message_of("a\n{% if x %}\n{{ 1 + }}"),
            "chat template, line 3: unexpected the end of the print tag");
  EXPECT_EQ(message_of("{{ raise_exception('Only users!') }}"),
            "the chat template refuses the request: Only users!");
}

TEST(Jinja, strftime_now_uses_the_clock) {
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y') }}|{{ strftime_now('') }}|", {}).bytes,
            "09 Mar 2025||");
}

TEST(Jinja, keeps_provenance_through_every_operation) {
  const OrderedJson variables = {{"u", "uSer"}, {"list", {"a", "b"}}, {"d", {{"k", "v\n"}}}};
  const std::pair<const char*, const char*> cases[] = {
      {"t{{ u }}t", "t[uSer]t"},
      {"{{ 'x' + u ~ 'y' }}", "x[uSer]y"},
      {"{{ ('ab' ~ u ~ 'cd')[1:4] }}", "b[uS]"},
      {"{{ ('ab' ~ u)[::-1] }}", "[reSu]ba"},
      {"{{ u.upper() }}{{ ('é' ~ u) | lower }}", "[USER]é[user]"},
      {"{{ (' ' ~ u ~ ' ').strip() }}", "[uSer]"},
      {"{{ ('a,' ~ u ~ ',b').split(',') | join('-') }}", "a-[uSer]-b"},
      {"{{ 'aXb'.replace('X', u) }}{{ u.replace('S', '-') }}", "a[uSer]b[u]-[er]"},
      {"{{ list | join(',') }}", "[a],[b]"},
      {"{{ u.join(['1', '2']) }}", "1[uSer]2"},
      {"{{ '%s|%5s|{}' % (u, u) }}", "[uSer]| [uSer]|{}"},
      {"{{ '<{}>'.format(u) }}{{ u.format() }}", "<[uSer]>[uSer]"},
      {"{{ d | tojson }}", "{\"[k]\": \"[v\\n]\"}"},
      {"{{ d }}", "{'[k]': '[v\\n]'}"},
      {"{% for c in u[:2] %}{{ c }}.{% endfor %}", "[u].[S]."},
      {"{% set x %}<{{ u }}>{% endset %}{{ x }}", "<[uSer]>"},
      {"{% macro m(a) %}({{ a }}){% endmacro %}{{ m(u) | upper }}", "([USER])"},
      {"{{ (u ~ '\nx') | indent(2) }}", "[uSer]\n  x"},
      {"{{ u | title }}{{ u | capitalize }}{{ u * 2 }}", "[UserUseruSeruSer]"},
      {"{{ ('<' ~ u) | escape }}", "&lt;[uSer]"},
      {"{{ u.partition('S')[2] }}{{ ('-' ~ u).removeprefix('-') }}", "[eruSer]"},
      {"{{ u.center(8, '*') }}", "**[uSer]**"},
      {"{{ u | length }}{{ 'yes' if u == 'uSer' }}", "4yes"},
      {"{{ dict(a=u).a }}{{ namespace(b=u).b }}{{ [u] | first }}", "[uSeruSeruSer]"},
  };
  for (const auto& [source, expected] : cases) {
    SCOPED_TRACE(source);
    EXPECT_EQ(marked(render(source, variables)), expected);
  }
}

TEST(Jinja, work_is_bounded) {
  const char* const hostile[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{{ 'x' * 99999999999 }}",
      "{{ [0] * 99999999999 }}",
      "{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set ns.s = ns.s.replace('x', "
      "ns.s) %}"
      "{% endfor %}",
      "{{ 'x'.ljust(99999999999) }}",
      "{{ 'x'.zfill(99999999999) }}",
      "{{ '%99999999d' % 1 }}",
      "{{ '{:99999999}'.format(1) }}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ 99999 ** 99999 }}",
      "{{ -9223372036854775807 - 2 }}",
      "{{ 99999999999999999999 }}",
      "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor "
      "%}{{ ns.x }}",
      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
      "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}"
      "{{ ns.x == [ns.x] }}{{ ns.x | tojson }}",
  };
  Limits limits;
  limits.max_steps = 2'000'000;
  limits.max_bytes = 64 << 20;
  for (const char* source : hostile) {
    SCOPED_TRACE(source);
    EXPECT_NE(message_of(source, limits), "");
  }
  limits.max_output_bytes = 100;
  EXPECT_NE(message_of("{% for i in range(60) %}ab{% endfor %}", limits), "");
}

std::string repeated(std::string_view part, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += part;
  return all;
}

TEST(Jinja, deep_nesting_is_an_error_and_long_chains_are_freed) {
  EXPECT_NE(message_of("{{ " + repeated("(", 100000)), "");
  EXPECT_NE(message_of("{{ " + repeated("[", 5000) + repeated("]", 5000) + " }}"), "");
  EXPECT_NE(message_of("{{ " + repeated("-", 5000) + "1 }}"), "");
  EXPECT_NE(message_of("{{ " + repeated("not ", 5000) + "1 }}"), "");
  EXPECT_NE(message_of(repeated("{% if 1 %}", 5000)), "");
  EXPECT_NE(message_of("{{ 1" + repeated(" if 1 else 1", 5000) + " }}"), "");
  EXPECT_NE(message_of("{{ x" + repeated(".x", 5000) + " }}"), "");
  EXPECT_NE(message_of("{{ 1" + repeated(" | abs", 5000) + " }}"), "");
  EXPECT_EQ(render("{{ 1" + repeated(" + 1", 400) + " }}", {}).bytes, "401");
  EXPECT_EQ(render("{{ ''" + repeated(" ~ 'a'", 5000) + " }}", {}).bytes, repeated("a", 5000));
  // High trees out of chains in brackets: evaluation refuses, the tree is freed.
  std::string nested = "1";
  for (int i = 0; i < 60; ++i) nested = "(" + nested + ")" + repeated(" + 1", 400);
  EXPECT_NE(message_of("{{ " + nested + " }}"), "");
}

TEST(Jinja, deep_macro_recursion_fits_the_stack) {
  EXPECT_EQ(
      render("{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{% else %}end{% endif %}{% endmacro %}"
             "{{ f(150) }}",
             {})
          .bytes,
      "end");
}

TEST(Jinja, refuses_text_that_is_not_utf8) {
  EXPECT_THROW(parse_template("a\xff"), Error);
  EXPECT_THROW(render("{{ x }}", {{"x", "\xc0\x80"}}), Error);
}

}  // namespace
}  // namespace coppice::jinja
