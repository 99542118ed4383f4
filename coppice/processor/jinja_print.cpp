// Values as text: Python's str() and repr(), and json.dumps.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "coppice/core/error.h"
#include "coppice/processor/jinja_value.h"

namespace coppice::jinja {
namespace {

constexpr int kMaxNesting = 200;

void check_depth(int depth) {
  if (depth > kMaxNesting) {
    fail_argument("chat template: values nested deeper than {} levels", kMaxNesting);
  }
}

bool printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  if (c < 0xA1 || c == 0xAD) return false;
  if (is_space(c)) return false;
  const bool format = (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
                      (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || c == 0x61C || c == 0x180E ||
                      (c >= 0xFFF9 && c <= 0xFFFB);
  const bool private_use = (c >= 0xE000 && c <= 0xF8FF) || c >= 0xE0000;
  return !format && !private_use;
}

void append_hex(char32_t c, TextBuilder& out, bool plain) {
  if (c <= 0xFF) {
    out.append(fmt::format("\\x{:02x}", static_cast<uint32_t>(c)), plain);
  } else if (c <= 0xFFFF) {
    out.append(fmt::format("\\u{:04x}", static_cast<uint32_t>(c)), plain);
  } else {
    out.append(fmt::format("\\U{:08x}", static_cast<uint32_t>(c)), plain);
  }
}

void append_string_repr(const Text& text, TextBuilder& out) {
  const std::string_view bytes = text.bytes;
  const bool single = bytes.find('\'') != std::string_view::npos;
  const bool both = single && bytes.find('"') != std::string_view::npos;
  const char quote = single && !both ? '"' : '\'';
  const std::string_view mark(&quote, 1);
  PlainCursor cursor(text);
  out.append(mark, false);
  for (size_t i = 0; i < bytes.size();) {
    const size_t at = i;
    const bool plain = cursor.at(i);
    const char32_t c = next_char(bytes, i);
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out.append("\\", plain);
      out.append(bytes.substr(at, i - at), plain);
    } else if (c == '\n') {
      out.append("\\n", plain);
    } else if (c == '\r') {
      out.append("\\r", plain);
    } else if (c == '\t') {
      out.append("\\t", plain);
    } else if (printable(c)) {
      out.append(bytes.substr(at, i - at), plain);
    } else {
      append_hex(c, out, plain);
    }
  }
  out.append(mark, false);
}

void append_items(const ListObject& list, TextBuilder& out, int depth) {
  bool first = true;
  for (const Value& item : list.items) {
    if (!first) out.append(", ", false);
    append_repr(item, out, depth + 1);
    first = false;
  }
}

void append_list_repr(const Value& value, TextBuilder& out, int depth) {
  const ListObject& list = value.list();
  switch (list.kind) {
    case ListKind::kList:
      out.append("[", false);
      append_items(list, out, depth);
      out.append("]", false);
      return;
    case ListKind::kTuple:
      out.append("(", false);
      append_items(list, out, depth);
      out.append(list.items.size() == 1 ? ",)" : ")", false);
      return;
    case ListKind::kRange: {
      const auto& items = list.items;
      const int64_t first = items.empty() ? 0 : items.front().integer;
      const int64_t step = items.size() < 2 ? 1 : items[1].integer - first;
      const int64_t stop = items.empty() ? 0 : items.back().integer + step;
      out.append(step == 1 ? fmt::format("range({}, {})", first, stop)
                           : fmt::format("range({}, {}, {})", first, stop, step),
                 false);
      return;
    }
    case ListKind::kIterator:
      out.append("<generator object>", false);
      return;
    default:
      out.append(fmt::format("{}([", type_name(value)), false);
      append_items(list, out, depth);
      out.append("])", false);
  }
}

void append_dict_repr(const DictObject& dict, TextBuilder& out, int depth) {
  out.append("{", false);
  bool first = true;
  for (const auto& [key, item] : dict.entries()) {
    if (!first) out.append(", ", false);
    append_repr(key, out, depth + 1);
    out.append(": ", false);
    append_repr(item, out, depth + 1);
    first = false;
  }
  out.append("}", false);
}

void append_json_string(const Text& text, bool ensure_ascii, TextBuilder& out) {
  const std::string_view bytes = text.bytes;
  PlainCursor cursor(text);
  out.append("\"", false);
  for (size_t i = 0; i < bytes.size();) {
    const size_t at = i;
    const bool plain = cursor.at(i);
    const char32_t c = next_char(bytes, i);
    switch (c) {
      case '"':
        out.append("\\\"", plain);
        continue;
      case '\\':
        out.append("\\\\", plain);
        continue;
      case '\n':
        out.append("\\n", plain);
        continue;
      case '\r':
        out.append("\\r", plain);
        continue;
      case '\t':
        out.append("\\t", plain);
        continue;
      case '\f':
        out.append("\\f", plain);
        continue;
      case '\b':
        out.append("\\b", plain);
        continue;
      default:
        break;
    }
    const auto code = static_cast<uint32_t>(c);
    if (code < 0x20 || (ensure_ascii && code > 0x7E && code <= 0xFFFF)) {
      // 0x7F is ASCII and stays as it is.
      if (code == 0x7F) {
        out.append(bytes.substr(at, i - at), plain);
      } else {
        out.append(fmt::format("\\u{:04x}", code), plain);
      }
    } else if (ensure_ascii && code > 0xFFFF) {
      const uint32_t rest = code - 0x10000;
      out.append(fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF)),
                 plain);
    } else {
      out.append(bytes.substr(at, i - at), plain);
    }
  }
  out.append("\"", false);
}

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return float_repr(value);
}

class JsonWriter final {
 public:
  JsonWriter(const JsonFormat& format, TextBuilder& out) : format_(format), out_(out) {}

  void write(const Value& value, int depth) {
    check_depth(depth);
    switch (value.kind) {
      case Kind::kNone:
        out_.append(value.soft ? "\"\"" : "null", false);
        return;
      case Kind::kBool:
        out_.append(value.boolean ? "true" : "false", false);
        return;
      case Kind::kInt:
        out_.append(std::to_string(value.integer), false);
        return;
      case Kind::kFloat:
        out_.append(json_float(value.real), false);
        return;
      case Kind::kString:
        append_json_string(*value.text, format_.ensure_ascii, out_);
        return;
      case Kind::kDict:
        write_dict(value.dict(), depth);
        return;
      case Kind::kList:
        if (value.list().kind == ListKind::kList || value.list().kind == ListKind::kTuple) {
          write_list(value.list(), depth);
          return;
        }
        break;
      case Kind::kUndefined:
        if (value.soft) {
          out_.append("\"\"", false);
          return;
        }
        break;
      default:
        break;
    }
    fail_argument("chat template: object of type {} is not JSON serializable", type_name(value));
  }

 private:
  void separate(bool first, int depth) {
    if (!first) out_.append(format_.item_separator, false);
    if (format_.indented) new_line(depth + 1);
  }

  void new_line(int depth) {
    out_.append("\n", false);
    for (int i = 0; i < depth; ++i) out_.append(format_.indent, false);
  }

  void write_list(const ListObject& list, int depth) {
    out_.append("[", false);
    bool first = true;
    for (const Value& item : list.items) {
      separate(first, depth);
      write(item, depth + 1);
      first = false;
    }
    if (!first && format_.indented) new_line(depth);
    out_.append("]", false);
  }

  void write_key(const Value& key) {
    if (key.is_string()) {
      append_json_string(*key.text, format_.ensure_ascii, out_);
      return;
    }
    if (!key.is_number() && !key.is_none()) {
      fail_argument("chat template: JSON keys must be str, int, float, bool or None, got {}",
                    type_name(key));
    }
    out_.append("\"", false);
    write(key, 0);
    out_.append("\"", false);
  }

  void write_dict(const DictObject& dict, int depth) {
    std::vector<const std::pair<Value, Value>*> order;
    for (const auto& entry : dict.entries()) order.push_back(&entry);
    if (format_.sort_keys) {
      std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
        return compare(a->first, b->first) == -1;
      });
    }
    out_.append("{", false);
    bool first = true;
    for (const auto* entry : order) {
      separate(first, depth);
      write_key(entry->first);
      out_.append(format_.key_separator, false);
      write(entry->second, depth + 1);
      first = false;
    }
    if (!first && format_.indented) new_line(depth);
    out_.append("}", false);
  }

  const JsonFormat& format_;
  TextBuilder& out_;
};

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const double size = std::fabs(value);
  const bool scientific = size != 0 && (size < 1e-4 || size >= 1e16);
  const auto format = scientific ? std::chars_format::scientific : std::chars_format::fixed;
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value, format);
  std::string text(buffer, result.ptr);
  if (!scientific && text.find('.') == std::string::npos) text += ".0";
  return text;
}

Text to_text(const Value& value) {
  if (value.is_string()) return *value.text;
  if (value.is_undefined()) {
    if (value.missing == Missing::kUnsafe) fail_undefined(value);
    return {};
  }
  if (value.is_none() && value.soft) return {};
  TextBuilder out;
  append_repr(value, out);
  return out.take();
}

void append_repr(const Value& value, TextBuilder& out, int depth) {
  check_depth(depth);
  switch (value.kind) {
    case Kind::kUndefined:
      out.append(value.soft ? "''" : "Undefined", false);
      return;
    case Kind::kNone:
      out.append(value.soft ? "''" : "None", false);
      return;
    case Kind::kBool:
      out.append(value.boolean ? "True" : "False", false);
      return;
    case Kind::kInt:
      out.append(std::to_string(value.integer), false);
      return;
    case Kind::kFloat:
      out.append(float_repr(value.real), false);
      return;
    case Kind::kString:
      append_string_repr(*value.text, out);
      return;
    case Kind::kList:
      append_list_repr(value, out, depth);
      return;
    case Kind::kDict:
      append_dict_repr(value.dict(), out, depth);
      return;
    case Kind::kNamespace:
      out.append("<Namespace ", false);
      append_dict_repr(value.dict(), out, depth);
      out.append(">", false);
      return;
    case Kind::kLoop:
      out.append(
          fmt::format("<LoopContext {}/{}>", value.loop().index0 + 1, value.loop().items->size()),
          false);
      return;
    case Kind::kCallable:
      out.append(fmt::format("<function {}>", value.callable().name), false);
      return;
  }
}

Text to_json(const Value& value, const JsonFormat& format) {
  TextBuilder out;
  JsonWriter(format, out).write(value, 0);
  return out.take();
}

}  // namespace coppice::jinja
