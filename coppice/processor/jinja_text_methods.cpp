// Methods of strings.
#include <algorithm>
#include <array>

#include "coppice/core/error.h"
#include "coppice/processor/jinja_runtime.h"

namespace coppice::jinja {
namespace {

constexpr int64_t kPartBytes = static_cast<int64_t>(sizeof(Text) + 2 * sizeof(Value));

int64_t size_of(const Text& text) { return static_cast<int64_t>(text.bytes.size()); }

int64_t occurrences(std::string_view text, std::string_view part) {
  int64_t count = 0;
  for (size_t i = 0; (i = text.find(part, i)) != std::string_view::npos; i += part.size()) ++count;
  return count;
}

template <CaseChange change>
Value method_case(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader("case method", args).finish();
  Text result = change_case(*self.text, change);
  result.markup = self.text->markup;
  return runtime.text(std::move(result));
}

template <bool left, bool right>
Value method_strip(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("strip", args);
  const Value* characters = reader.next("chars");
  reader.finish();
  std::optional<std::string_view> set;
  if (characters != nullptr && !characters->is_none()) {
    set = require_text(*characters, "chars").bytes;
    runtime.step(static_cast<int64_t>(set->size()));
  }
  Text result = strip_text(*self.text, set, left, right);
  result.markup = self.text->markup;
  return runtime.text(std::move(result));
}

template <bool from_right>
Value method_split(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("split", args);
  const Value* separator = reader.next("sep");
  const int64_t max_split = reader.integer("maxsplit", -1);
  reader.finish();
  std::optional<std::string_view> part;
  int64_t parts = 0;
  if (separator != nullptr && !separator->is_none()) {
    part = require_text(*separator, "sep").bytes;
    if (part->empty()) fail_argument("chat template: split() by an empty separator");
    parts = occurrences(self.text->bytes, *part);
  } else {
    parts = std::count(self.text->bytes.begin(), self.text->bytes.end(), ' ') +
            std::count(self.text->bytes.begin(), self.text->bytes.end(), '\n');
  }
  if (max_split >= 0) parts = std::min(parts, max_split);
  runtime.step(parts);
  runtime.check_product(kPartBytes, parts);
  return runtime.texts(split_text(*self.text, part, max_split, from_right));
}

Value method_splitlines(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("splitlines", args);
  const bool keep_ends = reader.boolean("keepends", false);
  reader.finish();
  const int64_t lines = std::count(self.text->bytes.begin(), self.text->bytes.end(), '\n');
  runtime.step(lines);
  runtime.check_product(kPartBytes, lines);
  return runtime.texts(split_lines(*self.text, keep_ends));
}

// The part of `self` that the optional start and stop arguments name, as byte offsets.
std::pair<size_t, size_t> window(const Text& self, ArgReader& reader) {
  const Value* start = reader.next("start");
  const Value* stop = reader.next("end");
  reader.finish();
  const int64_t length = char_count(self.bytes);
  const auto offset = [&](const Value* value, int64_t absent) {
    if (value == nullptr || value->is_none()) return absent;
    if (!value->is_integral()) fail_argument("chat template: slice indices must be integers");
    const int64_t index = value->as_integer();
    return std::clamp(index < 0 ? index + length : index, int64_t{0}, length);
  };
  const int64_t first = offset(start, 0);
  const int64_t last = std::max(first, offset(stop, length));
  const auto bytes = [&](int64_t characters) {
    size_t position = 0;
    for (int64_t i = 0; i < characters; ++i) next_char(self.bytes, position);
    return position;
  };
  return {bytes(first), bytes(last)};
}

// startswith and endswith: a string, or a tuple of them.
template <bool ends>
Value method_affix(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader(ends ? "endswith" : "startswith", args);
  const Value& affix = reader.require("affix");
  const auto [begin, end] = window(*self.text, reader);
  const std::string_view text = std::string_view(self.text->bytes).substr(begin, end - begin);
  const auto matches = [&](const Value& value) {
    const std::string& part = require_text(value, "affix").bytes;
    return ends ? text.ends_with(part) : text.starts_with(part);
  };
  if (affix.kind != Kind::kList) return Value::of(matches(affix));
  if (affix.list().kind != ListKind::kTuple) {
    fail_argument("chat template: expected a string or a tuple of strings, got '{}'",
                  type_name(affix));
  }
  const auto& all = runtime.elements(affix);
  return Value::of(std::any_of(all.begin(), all.end(), matches));
}

// find, rfind, index and rindex.
template <bool from_right, bool must_find>
Value method_find(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("find", args);
  const std::string& part = require_text(reader.require("sub"), "sub").bytes;
  const auto [begin, end] = window(*self.text, reader);
  runtime.step(1 + size_of(*self.text) / 64);
  const std::string_view text = std::string_view(self.text->bytes).substr(begin, end - begin);
  const size_t found = from_right ? text.rfind(part) : text.find(part);
  if (found == std::string_view::npos) {
    if (must_find) fail_argument("chat template: substring not found");
    return Value::of(int64_t{-1});
  }
  return Value::of(char_count(std::string_view(self.text->bytes).substr(0, begin + found)));
}

Value method_count(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("count", args);
  const std::string& part = require_text(reader.require("sub"), "sub").bytes;
  const auto [begin, end] = window(*self.text, reader);
  runtime.step(1 + size_of(*self.text) / 64);
  const std::string_view text = std::string_view(self.text->bytes).substr(begin, end - begin);
  return Value::of(part.empty() ? char_count(text) + 1 : occurrences(text, part));
}

Value method_replace(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("replace", args);
  const Text& from = require_text(reader.require("old"), "old");
  const Text& to = require_text(reader.require("new"), "new");
  const int64_t count = reader.integer("count", -1);
  reader.finish();
  const int64_t found = from.bytes.empty() ? char_count(self.text->bytes) + 1
                                           : occurrences(self.text->bytes, from.bytes);
  runtime.check_product(size_of(to) + 1, found);
  runtime.step(found);
  return runtime.text(replace_text(*self.text, from.bytes, to, count));
}

Value method_join(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("join", args);
  const Value& iterable = reader.require("iterable");
  reader.finish();
  TextBuilder out;
  bool first = true;
  for (const Value& item : runtime.elements(iterable)) {
    const Text& part = require_text(item, "join");
    runtime.use_bytes(size_of(part) + size_of(*self.text));
    if (!first) out.append(*self.text);
    out.append(part);
    first = false;
  }
  return Value::of(out.take());
}

Value method_format(Runtime& runtime, const Value& self, const Args& args) {
  return runtime.text(format_braces(runtime, *self.text, args));
}

template <bool from_right>
Value method_partition(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("partition", args);
  const Text& part = require_text(reader.require("sep"), "sep");
  reader.finish();
  if (part.bytes.empty()) fail_argument("chat template: partition() by an empty separator");
  const std::string& bytes = self.text->bytes;
  const size_t found = from_right ? bytes.rfind(part.bytes) : bytes.find(part.bytes);
  const Value empty = Value::string("");
  if (found == std::string::npos) {
    std::vector<Value> whole = {self, empty, empty};
    if (from_right) std::swap(whole[0], whole[2]);
    return runtime.list(std::move(whole), ListKind::kTuple);
  }
  const size_t after = found + part.bytes.size();
  return runtime.list({runtime.text(sub_text(*self.text, 0, found)),
                       runtime.text(sub_text(*self.text, found, after)),
                       runtime.text(sub_text(*self.text, after, bytes.size()))},
                      ListKind::kTuple);
}

template <bool suffix>
Value method_remove(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("remove", args);
  const std::string& part = require_text(reader.require("affix"), "affix").bytes;
  reader.finish();
  const std::string& bytes = self.text->bytes;
  if (suffix ? !bytes.ends_with(part) : !bytes.starts_with(part)) return self;
  return runtime.text(suffix ? sub_text(*self.text, 0, bytes.size() - part.size())
                             : sub_text(*self.text, part.size(), bytes.size()));
}

enum class Side : uint8_t { kLeft, kRight, kBoth };

template <Side side>
Value method_pad(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("padding method", args);
  const int64_t width = reader.integer("width", 0);
  const Text fill = reader.text("fillchar", " ");
  reader.finish();
  if (char_count(fill.bytes) != 1) fail_argument("chat template: the fill must be one character");
  const int64_t missing = width - char_count(self.text->bytes);
  if (missing <= 0) return self;
  runtime.check_product(size_of(fill), missing);
  runtime.step(missing);
  int64_t before = side == Side::kLeft ? missing : 0;
  if (side == Side::kBoth) before = missing / 2 + (missing & width & 1);
  TextBuilder out;
  for (int64_t i = 0; i < before; ++i) out.append(fill);
  out.append(*self.text);
  for (int64_t i = before; i < missing; ++i) out.append(fill);
  return runtime.text(out.take());
}

Value method_zfill(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("zfill", args);
  const int64_t width = reader.integer("width", 0);
  reader.finish();
  const int64_t missing = width - char_count(self.text->bytes);
  if (missing <= 0) return self;
  runtime.check_product(1, missing);
  const std::string& bytes = self.text->bytes;
  const size_t sign = bytes.starts_with('-') || bytes.starts_with('+') ? 1 : 0;
  TextBuilder out;
  out.append(*self.text, 0, sign);
  out.append(std::string(static_cast<size_t>(missing), '0'), false);
  out.append(*self.text, sign, bytes.size());
  return runtime.text(out.take());
}

bool digit(char32_t c) { return c >= '0' && c <= '9'; }
bool letter(char32_t c) {
  return is_cased(c) || (c >= 0x80 && !is_space(c) && (c < 0x2000 || c > 0x206F));
}
bool digit_or_letter(char32_t c) { return digit(c) || letter(c); }

// isdigit and the like: at least one character, and all of the kind.
template <bool (*predicate)(char32_t)>
Value method_is(Runtime&, const Value& self, const Args& args) {
  ArgReader("is method", args).finish();
  const std::string& bytes = self.text->bytes;
  for (size_t i = 0; i < bytes.size();) {
    if (!predicate(next_char(bytes, i))) return Value::of(false);
  }
  return Value::of(!bytes.empty());
}

template <bool upper>
Value method_is_case(Runtime& runtime, const Value& self, const Args& args) {
  return Value::of(find_test(upper ? "upper" : "lower")(runtime, self, args));
}

struct Entry {
  std::string_view name;
  MethodFunction function;
};

constexpr std::array kMethods = {
    Entry{"strip", method_strip<true, true>},
    Entry{"lstrip", method_strip<true, false>},
    Entry{"rstrip", method_strip<false, true>},
    Entry{"split", method_split<false>},
    Entry{"rsplit", method_split<true>},
    Entry{"splitlines", method_splitlines},
    Entry{"startswith", method_affix<false>},
    Entry{"endswith", method_affix<true>},
    Entry{"replace", method_replace},
    Entry{"join", method_join},
    Entry{"format", method_format},
    Entry{"find", method_find<false, false>},
    Entry{"rfind", method_find<true, false>},
    Entry{"index", method_find<false, true>},
    Entry{"rindex", method_find<true, true>},
    Entry{"count", method_count},
    Entry{"upper", method_case<CaseChange::kUpper>},
    Entry{"lower", method_case<CaseChange::kLower>},
    Entry{"title", method_case<CaseChange::kTitle>},
    Entry{"capitalize", method_case<CaseChange::kCapitalize>},
    Entry{"partition", method_partition<false>},
    Entry{"rpartition", method_partition<true>},
    Entry{"removeprefix", method_remove<false>},
    Entry{"removesuffix", method_remove<true>},
    Entry{"ljust", method_pad<Side::kRight>},
    Entry{"rjust", method_pad<Side::kLeft>},
    Entry{"center", method_pad<Side::kBoth>},
    Entry{"zfill", method_zfill},
    Entry{"isdigit", method_is<digit>},
    Entry{"isdecimal", method_is<digit>},
    Entry{"isnumeric", method_is<digit>},
    Entry{"isalpha", method_is<letter>},
    Entry{"isalnum", method_is<digit_or_letter>},
    Entry{"isspace", method_is<is_space>},
    Entry{"isupper", method_is_case<true>},
    Entry{"islower", method_is_case<false>},
};

}  // namespace

MethodFunction find_text_method(std::string_view name) {
  for (const Entry& entry : kMethods) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace coppice::jinja
