// Python's two string formats: "..." % arguments and "...".format(arguments).
#include <charconv>
#include <cmath>

#include "coppice/core/error.h"
#include "coppice/processor/jinja_runtime.h"

namespace coppice::jinja {
namespace {

constexpr int64_t kMaxWidth = 4096;

// [[fill]align][sign][#][0][width][,][.precision][type]
struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool alternate = false;
  char grouping = '\0';
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

int64_t take_number(std::string_view text, size_t& i) {
  int64_t number = 0;
  for (; i < text.size() && is_digit(text[i]); ++i) {
    number = number * 10 + (text[i] - '0');
    if (number > kMaxWidth) {
      fail_argument("chat template: a format asks for more than {} characters", kMaxWidth);
    }
  }
  return number;
}

Spec parse_spec(std::string_view text) {
  constexpr std::string_view kAlign = "<>^=";
  Spec spec;
  size_t i = 0;
  if (!text.empty()) {
    size_t after = 0;
    next_char(text, after);
    if (after < text.size() && kAlign.find(text[after]) != std::string_view::npos) {
      spec.fill = text.substr(0, after);
      spec.align = text[after];
      i = after + 1;
    } else if (kAlign.find(text[0]) != std::string_view::npos) {
      spec.align = text[0];
      i = 1;
    }
  }
  if (i < text.size() && (text[i] == '+' || text[i] == '-' || text[i] == ' '))
    spec.sign = text[i++];
  if (i < text.size() && text[i] == '#') {
    spec.alternate = true;
    ++i;
  }
  if (i < text.size() && text[i] == '0') {
    if (spec.align == '\0') {
      spec.fill = "0";
      spec.align = '=';
    }
    ++i;
  }
  spec.width = take_number(text, i);
  if (i < text.size() && (text[i] == ',' || text[i] == '_')) spec.grouping = text[i++];
  if (i < text.size() && text[i] == '.') {
    const size_t digits = ++i;
    spec.precision = take_number(text, i);
    if (i == digits) fail_argument("chat template: a format lacks its precision");
  }
  if (i < text.size()) spec.type = text[i++];
  if (i != text.size()) fail_argument("chat template: malformed format '{}'", text);
  return spec;
}

void pad(Text content, const Spec& spec, char default_align, size_t sign_bytes, TextBuilder& out) {
  const int64_t missing = std::max<int64_t>(0, spec.width - char_count(content.bytes));
  const char align = spec.align == '\0' ? default_align : spec.align;
  const int64_t before = align == '<' || align == '=' ? 0 : (align == '^' ? missing / 2 : missing);
  const auto fill = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) out.append(spec.fill, false);
  };
  fill(before);
  const size_t split = align == '=' ? sign_bytes : 0;
  out.append(content, 0, split);
  if (align == '=') fill(missing);
  out.append(content, split, content.bytes.size());
  if (align != '=') fill(missing - before);
}

std::string integer_digits(uint64_t value, char type, bool alternate) {
  switch (type) {
    case 'x':
      return (alternate ? "0x" : "") + fmt::format("{:x}", value);
    case 'X':
      return (alternate ? "0X" : "") + fmt::format("{:X}", value);
    case 'o':
      return (alternate ? "0o" : "") + fmt::format("{:o}", value);
    case 'b':
      return (alternate ? "0b" : "") + fmt::format("{:b}", value);
    default:
      return std::to_string(value);
  }
}

std::string real_digits(double value, char type, int64_t precision) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return "inf";
  const int digits = static_cast<int>(std::min<int64_t>(precision < 0 ? 6 : precision, 400));
  switch (type) {
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", value, digits);
    case 'e':
      return fmt::format("{:.{}e}", value, digits);
    case 'E':
      return fmt::format("{:.{}E}", value, digits);
    case 'G':
      return fmt::format("{:.{}G}", value, digits);
    case 'g':
      return fmt::format("{:.{}g}", value, digits);
    case '%':
      return fmt::format("{:.{}f}%", value * 100, digits);
    default:
      break;
  }
  return precision < 0 ? float_repr(value) : fmt::format("{:.{}g}", value, digits);
}

void group_thousands(std::string& digits, char separator) {
  size_t whole = 0;
  while (whole < digits.size() && is_digit(digits[whole])) ++whole;
  for (size_t i = whole; i > 3; i -= 3) digits.insert(i - 3, 1, separator);
}

void format_number(const Value& value, const Spec& spec, TextBuilder& out) {
  constexpr std::string_view kIntegerTypes = "dxXob";
  const bool as_integer =
      value.is_integral() && (spec.type == '\0' || spec.type == 'n' ||
                              kIntegerTypes.find(spec.type) != std::string_view::npos);
  std::string digits;
  bool negative = false;
  if (as_integer) {
    const int64_t integer = value.as_integer();
    negative = integer < 0;
    const auto size =
        negative ? ~static_cast<uint64_t>(integer) + 1 : static_cast<uint64_t>(integer);
    digits = integer_digits(size, spec.type, spec.alternate);
  } else {
    constexpr std::string_view kRealTypes = "eEfFgG%n";
    if (spec.type != '\0' && kRealTypes.find(spec.type) == std::string_view::npos) {
      fail_argument("chat template: unknown format code '{}' for '{}'", spec.type,
                    type_name(value));
    }
    const double real = value.as_real();
    negative = std::signbit(real);
    digits = real_digits(std::fabs(real), spec.type, spec.precision);
  }
  if (spec.grouping != '\0') group_thousands(digits, spec.grouping);
  std::string sign = negative ? "-" : (spec.sign == '-' ? "" : std::string(1, spec.sign));
  const size_t sign_bytes = sign.size();
  pad(Text{sign + digits, {}, false}, spec, '>', sign_bytes, out);
}

void format_value(const Value& value, std::string_view spec_text, TextBuilder& out) {
  if (value.is_undefined() && !value.soft && !spec_text.empty()) fail_undefined(value);
  const Spec spec = parse_spec(spec_text);
  const bool boolean_text = value.kind == Kind::kBool && spec.type == '\0' && spec_text.empty();
  if (value.is_number() && !boolean_text) {
    format_number(value, spec, out);
    return;
  }
  if (!spec_text.empty() && !value.is_string() && !value.soft) {
    fail_argument("chat template: '{}' takes no format, got '{}'", type_name(value), spec_text);
  }
  if (spec.type != '\0' && spec.type != 's') {
    fail_argument("chat template: unknown format code '{}' for 'str'", spec.type);
  }
  Text text = to_text(value);
  if (spec.precision >= 0) text = slice_text(text, std::nullopt, spec.precision, 1);
  pad(std::move(text), spec, '<', 0, out);
}

// A field of format(): "", "0", "name", with .attribute and [item] behind.
Value field_value(Runtime& runtime, std::string_view field, const Args& args, size_t& next) {
  size_t end = field.find_first_of(".[");
  if (end == std::string_view::npos) end = field.size();
  const std::string_view name = field.substr(0, end);
  Value value;
  size_t index = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), index);
  if (name.empty() || (parsed.ec == std::errc{} && parsed.ptr == name.data() + name.size())) {
    if (name.empty()) index = next++;
    if (index >= args.positional.size()) {
      fail_argument("chat template: format() has no positional argument {}", index);
    }
    value = args.positional[index];
  } else {
    bool found = false;
    for (const auto& [given, argument] : args.named) {
      if (given != name) continue;
      value = argument;
      found = true;
    }
    if (!found) fail_argument("chat template: format() has no argument '{}'", name);
  }
  for (size_t i = end; i < field.size();) {
    const bool item = field[i] == '[';
    size_t stop = field.find_first_of(item ? "]" : ".[", i + 1);
    if (stop == std::string_view::npos) stop = field.size();
    const std::string_view part = field.substr(i + 1, stop - i - 1);
    int64_t number = 0;
    const auto digits = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool numeric = digits.ec == std::errc{} && digits.ptr == part.data() + part.size();
    value = item ? runtime.item(value, numeric ? Value::of(number) : Value::string(part))
                 : runtime.attribute(value, part);
    i = stop + (item ? 1 : 0);
  }
  return value;
}

// The value that "%" asks for next.
class PercentArguments final {
 public:
  explicit PercentArguments(const Value& arguments) : arguments_(arguments) {}

  bool is_tuple() const {
    return arguments_.kind == Kind::kList && arguments_.list().kind == ListKind::kTuple;
  }

  Value next() {
    if (is_tuple()) {
      const auto& items = arguments_.list().items;
      if (used_ >= items.size()) fail_argument("chat template: not enough arguments for a format");
      return items[used_++];
    }
    if (used_ > 0) fail_argument("chat template: not enough arguments for a format");
    ++used_;
    return arguments_;
  }

  Value named(std::string_view key) {
    if (arguments_.kind != Kind::kDict) fail_argument("chat template: a format needs a mapping");
    const Value* found = arguments_.dict().find(key);
    if (found == nullptr) fail_argument("chat template: a format lacks the argument '{}'", key);
    used_ = 1;
    return *found;
  }

  void finish() const {
    const bool done =
        is_tuple() ? used_ >= arguments_.list().items.size()
                   : used_ > 0 || arguments_.kind == Kind::kDict || arguments_.kind == Kind::kList;
    if (!done) fail_argument("chat template: not all arguments were used by a format");
  }

 private:
  const Value& arguments_;
  size_t used_ = 0;
};

void format_conversion(const Value& value, Spec spec, TextBuilder& out) {
  if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
    TextBuilder repr;
    if (spec.type != 's') append_repr(value, repr);
    Text text = spec.type == 's' ? to_text(value) : repr.take();
    if (spec.precision >= 0) text = slice_text(text, std::nullopt, spec.precision, 1);
    if (spec.align == '=') spec.align = '\0';
    spec.fill = " ";
    pad(std::move(text), spec, '>', 0, out);
    return;
  }
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_number()) {
    fail_argument("chat template: %{} needs a number, got '{}'", spec.type, type_name(value));
  }
  Value number = value;
  if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
  constexpr std::string_view kWhole = "dxXo";
  if (kWhole.find(spec.type) != std::string_view::npos && value.kind == Kind::kFloat) {
    if (!(std::fabs(value.real) < 9e18)) fail_argument("chat template: %d of a number too large");
    number = Value::of(static_cast<int64_t>(value.real));
  }
  format_number(number, spec, out);
}

}  // namespace

Text format_percent(Runtime& runtime, const Text& format, const Value& arguments) {
  const std::string_view bytes = format.bytes;
  PercentArguments values(arguments);
  TextBuilder out;
  for (size_t i = 0; i < bytes.size();) {
    const size_t mark = std::min(bytes.find('%', i), bytes.size());
    out.append(format, i, mark);
    i = mark + 1;
    if (mark == bytes.size()) break;
    std::optional<std::string> key;
    if (i < bytes.size() && bytes[i] == '(') {
      const size_t end = bytes.find(')', i);
      if (end == std::string_view::npos) fail_argument("chat template: a format key is not closed");
      key = std::string(bytes.substr(i + 1, end - i - 1));
      i = end + 1;
    }
    Spec spec;
    for (; i < bytes.size() && std::string_view("-+ #0").find(bytes[i]) != std::string_view::npos;
         ++i) {
      if (bytes[i] == '-') spec.align = '<';
      if (bytes[i] == '+' || (bytes[i] == ' ' && spec.sign == '-')) spec.sign = bytes[i];
      if (bytes[i] == '#') spec.alternate = true;
      if (bytes[i] == '0' && spec.align == '\0') {
        spec.align = '=';
        spec.fill = "0";
      }
    }
    if (spec.align == '<') spec.fill = " ";
    spec.width = take_number(bytes, i);
    if (i < bytes.size() && bytes[i] == '.') {
      ++i;
      spec.precision = take_number(bytes, i);
    }
    if (i >= bytes.size()) fail_argument("chat template: incomplete format");
    spec.type = bytes[i++];
    if (spec.type == '%') {
      out.append("%", false);
      continue;
    }
    if (std::string_view("srdiuxXofFeEgGa").find(spec.type) == std::string_view::npos) {
      fail_argument("chat template: unsupported format character '{}'", spec.type);
    }
    const size_t before = out.size();
    format_conversion(key ? values.named(*key) : values.next(), spec, out);
    runtime.use_bytes(static_cast<int64_t>(out.size() - before));
  }
  values.finish();
  return out.take();
}

Text format_braces(Runtime& runtime, const Text& format, const Args& args) {
  const std::string_view bytes = format.bytes;
  TextBuilder out;
  size_t next = 0;
  for (size_t i = 0; i < bytes.size();) {
    const size_t brace = std::min(bytes.find_first_of("{}", i), bytes.size());
    out.append(format, i, brace);
    i = brace;
    if (brace == bytes.size()) break;
    if (i + 1 < bytes.size() && bytes[i + 1] == bytes[i]) {
      out.append(format, i, i + 1);
      i += 2;
      continue;
    }
    const size_t end = bytes.find('}', i);
    if (bytes[i] == '}' || end == std::string_view::npos) {
      fail_argument("chat template: a single '{}' in a format", bytes[i]);
    }
    const std::string_view field = bytes.substr(i + 1, end - i - 1);
    if (field.find('{') != std::string_view::npos) {
      fail_argument("chat template: nested fields in a format are not supported");
    }
    const size_t colon = std::min(field.find(':'), field.size());
    std::string_view name = field.substr(0, colon);
    const size_t bang = name.find('!');
    const std::string_view conversion = bang == std::string_view::npos ? "" : name.substr(bang + 1);
    name = name.substr(0, bang);
    Value value = field_value(runtime, name, args, next);
    if (conversion == "r") {
      TextBuilder repr;
      append_repr(value, repr);
      value = Value::of(repr.take());
    } else if (conversion == "s") {
      value = Value::of(text_of(value));
    } else if (bang != std::string_view::npos) {
      fail_argument("chat template: unknown conversion '{}' in a format", conversion);
    }
    const size_t before = out.size();
    format_value(value, colon < field.size() ? field.substr(colon + 1) : "", out);
    runtime.use_bytes(static_cast<int64_t>(out.size() - before));
    i = end + 1;
  }
  return out.take();
}

}  // namespace coppice::jinja
