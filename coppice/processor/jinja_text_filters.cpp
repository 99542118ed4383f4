// Filters that make text or numbers.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "coppice/core/error.h"
#include "coppice/processor/jinja_runtime.h"

namespace coppice::jinja {
namespace {

template <CaseChange change>
Value case_filter(Runtime& runtime, const Value& input, const Args&) {
  const auto text = text_of(input);
  Text result = change_case(*text, change);
  result.markup = text->markup;
  return runtime.text(std::move(result));
}

Value filter_trim(Runtime& runtime, const Value& input, const Args& args) {
  ArgReader reader("trim", args);
  const Value* characters = reader.next("chars");
  reader.finish();
  const auto text = text_of(input);
  std::optional<std::string_view> set;
  if (characters != nullptr && !characters->is_none()) {
    set = require_text(*characters, "chars").bytes;
    runtime.step(static_cast<int64_t>(text->bytes.size() + set->size()));
  }
  Text result = strip_text(*text, set, true, true);
  result.markup = text->markup;
  return runtime.text(std::move(result));
}

Value filter_replace(Runtime& runtime, const Value& input, const Args& args) {
  ArgReader reader("replace", args);
  const auto from = text_of(reader.require("old"));
  const auto to = text_of(reader.require("new"));
  const Value* count = reader.next("count");
  reader.finish();
  Args texts;
  texts.positional = {Value::of(from), Value::of(to)};
  if (count != nullptr && !count->is_none()) texts.positional.push_back(*count);
  return find_text_method("replace")(runtime, Value::of(text_of(input)), texts);
}

Value filter_string(Runtime&, const Value& input, const Args&) { return Value::of(text_of(input)); }

Value filter_safe(Runtime& runtime, const Value& input, const Args&) {
  Text text = to_text(input);
  text.markup = true;
  return runtime.text(std::move(text));
}

Value filter_escape(Runtime& runtime, const Value& input, const Args&) {
  const auto text = text_of(input);
  if (text->markup) return Value::of(text);
  Text result = escape_html(*text);
  result.markup = true;
  return runtime.text(std::move(result));
}

Value filter_tojson(Runtime& runtime, const Value& input, const Args& args) {
  ArgReader reader("tojson", args);
  JsonFormat format;
  format.ensure_ascii = reader.boolean("ensure_ascii", false);
  if (const Value* indent = reader.next("indent"); indent != nullptr && !indent->is_none()) {
    format.indented = true;
    format.item_separator = ",";
    if (indent->is_integral()) {
      if (indent->as_integer() > 64) fail_argument("chat template: tojson() indents by at most 64");
      format.indent.assign(static_cast<size_t>(std::max<int64_t>(0, indent->as_integer())), ' ');
    } else {
      format.indent = require_text(*indent, "indent").bytes;
      if (format.indent.size() > 64) {
        fail_argument("chat template: tojson() indents by at most 64");
      }
    }
  }
  if (const Value* pair = reader.next("separators"); pair != nullptr && !pair->is_none()) {
    const auto& parts = runtime.elements(*pair);
    if (parts.size() != 2) fail_argument("chat template: tojson() needs two separators");
    format.item_separator = require_text(parts[0], "separators").bytes;
    format.key_separator = require_text(parts[1], "separators").bytes;
    if (format.item_separator.size() > 64 || format.key_separator.size() > 64) {
      fail_argument("chat template: tojson() takes separators of at most 64 bytes");
    }
  }
  format.sort_keys = reader.boolean("sort_keys", false);
  reader.finish();
  if (input.soft) return Value::string("");
  return runtime.text(to_json(input, format));
}

Value filter_indent(Runtime& runtime, const Value& input, const Args& args) {
  ArgReader reader("indent", args);
  const Value* width = reader.next("width");
  const bool first = reader.boolean("first", false);
  const bool blank = reader.boolean("blank", false);
  reader.finish();
  Text indention{"    ", {}, false};
  if (width != nullptr && width->is_string()) {
    indention = *width->text;
  } else if (width != nullptr) {
    if (!width->is_integral() || width->as_integer() > 4096) {
      fail_argument("chat template: indent() takes a width of at most 4096, or a string");
    }
    indention.bytes.assign(static_cast<size_t>(std::max<int64_t>(0, width->as_integer())), ' ');
  }
  // A line end is added first, so a text that ends with one keeps it.
  const Text& source = require_text(input, "indent");
  TextBuilder padded;
  padded.append(source);
  padded.append("\n", false);
  const std::vector<Text> lines = split_lines(padded.take(), false);
  runtime.check_product(static_cast<int64_t>(indention.bytes.size()) + 1,
                        static_cast<int64_t>(lines.size()) + 1);
  TextBuilder out;
  if (first) out.append(indention);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.append("\n", false);
      if (blank || !lines[i].bytes.empty()) out.append(indention);
    }
    out.append(lines[i]);
  }
  Text result = out.take();
  result.markup = source.markup;
  return runtime.text(std::move(result));
}

Value filter_format(Runtime& runtime, const Value& input, const Args& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    fail_argument("chat template: format() takes positional or named arguments, got both");
  }
  Value values;
  if (args.named.empty()) {
    values = runtime.list(args.positional, ListKind::kTuple);
  } else {
    DictObject& dict = runtime.new_dict();
    for (const auto& [name, value] : args.named) dict.set(Value::string(name), value);
    values = Value::of(&dict);
  }
  return runtime.text(format_percent(runtime, *text_of(input), values));
}

// The text of a number with what Python's int() and float() skip taken away.
std::string number_text(const Text& text) {
  std::string digits = strip_text(text, std::nullopt, true, true).bytes;
  if (digits.starts_with('+') && digits.size() > 1 && digits[1] != '-' && digits[1] != '+') {
    digits.erase(0, 1);
  }
  for (size_t i = 1; i + 1 < digits.size(); ++i) {
    const auto digit = [&](size_t at) {
      return std::isalnum(static_cast<unsigned char>(digits[at]));
    };
    if (digits[i] == '_' && digit(i - 1) && digit(i + 1)) digits.erase(i, 1);
  }
  return digits;
}

std::optional<double> parse_real(const Text& text) {
  const std::string digits = number_text(text);
  double real = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), real);
  if (result.ec != std::errc{} || result.ptr != digits.data() + digits.size()) return std::nullopt;
  return real;
}

std::optional<int64_t> truncated(double real) {
  if (!(std::fabs(real) < 9.2e18)) return std::nullopt;
  return static_cast<int64_t>(real);
}

Value filter_int(Runtime&, const Value& input, const Args& args) {
  ArgReader reader("int", args);
  const Value* absent = reader.next("default");
  const int64_t base = reader.integer("base", 10);
  reader.finish();
  const Value fallback = absent == nullptr ? Value::of(int64_t{0}) : *absent;
  if (input.is_undefined()) fail_undefined(input);
  if (input.is_integral()) return Value::of(input.as_integer());
  if (input.kind == Kind::kFloat) {
    const auto whole = truncated(input.real);
    return whole ? Value::of(*whole) : fallback;
  }
  if (!input.is_string()) return fallback;
  std::string digits = number_text(*input.text);
  if (base < 2 || base > 36)
    fail_argument("chat template: int() takes a base of 2 to 36, got {}", base);
  const size_t sign = digits.starts_with('-') ? 1 : 0;
  const char mark = base == 16 ? 'x' : (base == 8 ? 'o' : (base == 2 ? 'b' : '\0'));
  if (mark != '\0' && digits.size() > sign + 2 && digits[sign] == '0' &&
      (digits[sign + 1] | 0x20) == mark) {
    digits.erase(sign, 2);
  }
  int64_t integer = 0;
  const char* last = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), last, integer, static_cast<int>(base));
  if (result.ec == std::errc{} && result.ptr == last) return Value::of(integer);
  const auto real = parse_real(*input.text);
  const auto whole = real ? truncated(*real) : std::nullopt;
  return whole ? Value::of(*whole) : fallback;
}

Value filter_float(Runtime&, const Value& input, const Args& args) {
  ArgReader reader("float", args);
  const Value* absent = reader.next("default");
  reader.finish();
  const Value fallback = absent == nullptr ? Value::of(0.0) : *absent;
  if (input.is_undefined()) fail_undefined(input);
  if (input.is_number()) return Value::of(input.as_real());
  if (!input.is_string()) return fallback;
  const auto real = parse_real(*input.text);
  return real ? Value::of(*real) : fallback;
}

Value filter_abs(Runtime& runtime, const Value& input, const Args&) {
  if (input.is_undefined()) fail_undefined(input);
  if (!input.is_number()) fail_argument("chat template: abs() of '{}'", type_name(input));
  if (input.kind == Kind::kFloat) return Value::of(std::fabs(input.real));
  return input.as_integer() < 0 ? runtime.binary("neg", input, Value::none())
                                : Value::of(input.as_integer());
}

Value filter_round(Runtime&, const Value& input, const Args& args) {
  ArgReader reader("round", args);
  const int64_t precision = reader.integer("precision", 0);
  const std::string method = reader.text("method", "common").bytes;
  reader.finish();
  if (input.is_undefined()) fail_undefined(input);
  if (!input.is_number()) fail_argument("chat template: round() of '{}'", type_name(input));
  if (precision < -300 || precision > 300)
    fail_argument("chat template: round() to {} digits", precision);
  const double value = input.as_real();
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value::of(std::ceil(value * scale) / scale);
  if (method == "floor") return Value::of(std::floor(value * scale) / scale);
  if (method != "common") fail_argument("chat template: round() has no method '{}'", method);
  if (input.is_integral() && precision >= 0) return Value::of(input.as_integer());
  if (precision < 0) return Value::of(std::nearbyint(value * scale) / scale);
  // Through decimal digits, as Python rounds: half to even on the exact value.
  const std::string digits = fmt::format("{:.{}f}", value, precision);
  return Value::of(std::strtod(digits.c_str(), nullptr));
}

Value filter_length(Runtime& runtime, const Value& input, const Args&) {
  return Value::of(runtime.length(input));
}

Value filter_default(Runtime&, const Value& input, const Args& args) {
  ArgReader reader("default", args);
  const Value* absent = reader.next("default_value");
  const bool boolean = reader.boolean("boolean", false);
  reader.finish();
  if (!input.is_undefined() && !(boolean && !truthy(input))) return input;
  return absent == nullptr ? Value::string("") : *absent;
}

Value filter_wordcount(Runtime&, const Value& input, const Args&) {
  int64_t words = 0;
  bool inside = false;
  const auto text = text_of(input);
  for (size_t i = 0; i < text->bytes.size();) {
    const char32_t c = next_char(text->bytes, i);
    const bool word =
        !is_space(c) && !(c < 0x80 && std::ispunct(static_cast<int>(c)) != 0 && c != '_');
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value::of(words);
}

struct Entry {
  std::string_view name;
  FilterFunction function;
};

constexpr std::array kFilters = {
    Entry{"abs", filter_abs},
    Entry{"capitalize", case_filter<CaseChange::kCapitalize>},
    Entry{"count", filter_length},
    Entry{"d", filter_default},
    Entry{"default", filter_default},
    Entry{"e", filter_escape},
    Entry{"escape", filter_escape},
    Entry{"float", filter_float},
    Entry{"format", filter_format},
    Entry{"indent", filter_indent},
    Entry{"int", filter_int},
    Entry{"length", filter_length},
    Entry{"lower", case_filter<CaseChange::kLower>},
    Entry{"replace", filter_replace},
    Entry{"round", filter_round},
    Entry{"safe", filter_safe},
    Entry{"string", filter_string},
    Entry{"title", case_filter<CaseChange::kFilterTitle>},
    Entry{"tojson", filter_tojson},
    Entry{"trim", filter_trim},
    Entry{"upper", case_filter<CaseChange::kUpper>},
    Entry{"wordcount", filter_wordcount},
};

}  // namespace

FilterFunction find_text_filter(std::string_view name) {
  for (const Entry& entry : kFilters) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace coppice::jinja
