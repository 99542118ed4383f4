#include "coppice/processor/jinja_value.h"

#include <algorithm>
#include <cmath>

#include "coppice/core/error.h"

namespace coppice::jinja {
namespace {

constexpr int kMaxNesting = 200;

void check_depth(int depth) {
  if (depth > kMaxNesting) {
    fail_argument("chat template: values nested deeper than {} levels", kMaxNesting);
  }
}

bool is_sequence(const Value& value) {
  return value.kind == Kind::kList && value.list().kind != ListKind::kIterator;
}

int three_way(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return 2;
  return a < b ? -1 : (a > b ? 1 : 0);
}

void check_hashable(const Value& key) {
  const bool tuple = key.kind == Kind::kList && key.list().kind == ListKind::kTuple;
  if (key.kind == Kind::kDict || (key.kind == Kind::kList && !tuple)) {
    fail_argument("chat template: unhashable type: '{}' used as a key", type_name(key));
  }
}

bool equal_lists(const ListObject& a, const ListObject& b, int depth) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(a.items[i], b.items[i], depth + 1)) return false;
  }
  return true;
}

bool equal_dicts(const DictObject& a, const DictObject& b, int depth) {
  if (a.entries().size() != b.entries().size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.find(key);
    if (other == nullptr || !equal(value, *other, depth + 1)) return false;
  }
  return true;
}

}  // namespace

Value Value::of_kind(Kind kind) {
  Value value;
  value.kind = kind;
  return value;
}

Value Value::undefined(std::string what, Missing why) {
  Value value;
  value.missing = why;
  value.text = std::make_shared<const Text>(Text{std::move(what), {}, false});
  return value;
}

Value Value::of(bool boolean) {
  Value value = of_kind(Kind::kBool);
  value.boolean = boolean;
  return value;
}

Value Value::of(int64_t integer) {
  Value value = of_kind(Kind::kInt);
  value.integer = integer;
  return value;
}

Value Value::of(double real) {
  Value value = of_kind(Kind::kFloat);
  value.real = real;
  return value;
}

Value Value::of(Text text) { return of(std::make_shared<const Text>(std::move(text))); }

Value Value::of(std::shared_ptr<const Text> text) {
  Value value = of_kind(Kind::kString);
  value.text = std::move(text);
  return value;
}

Value Value::of(ListObject* list) {
  Value value = of_kind(Kind::kList);
  value.object = list;
  return value;
}

Value Value::of(DictObject* dict, Kind kind) {
  Value value = of_kind(kind);
  value.object = dict;
  return value;
}

Value Value::of(CallableObject* callable) {
  Value value = of_kind(Kind::kCallable);
  value.object = callable;
  return value;
}

Value Value::of(LoopObject* loop) {
  Value value = of_kind(Kind::kLoop);
  value.object = loop;
  return value;
}

ListObject& Value::list() const { return *static_cast<ListObject*>(object); }
DictObject& Value::dict() const { return *static_cast<DictObject*>(object); }
CallableObject& Value::callable() const { return *static_cast<CallableObject*>(object); }
LoopObject& Value::loop() const { return *static_cast<LoopObject*>(object); }

const Value* DictObject::find(std::string_view key) const {
  const auto found = strings_.find(key);
  return found == strings_.end() ? nullptr : &entries_[found->second].second;
}

std::optional<size_t> DictObject::index_of(const Value& key) const {
  if (key.is_string()) {
    const auto found = strings_.find(key.text->bytes);
    return found == strings_.end() ? std::nullopt : std::optional(found->second);
  }
  check_hashable(key);
  for (const size_t i : others_) {
    if (equal(entries_[i].first, key)) return i;
  }
  return std::nullopt;
}

const Value* DictObject::find(const Value& key) const {
  const std::optional<size_t> index = index_of(key);
  return index ? &entries_[*index].second : nullptr;
}

void DictObject::set(Value key, Value value) {
  if (const std::optional<size_t> index = index_of(key)) {
    entries_[*index].second = std::move(value);
    return;
  }
  const bool string = key.is_string();
  entries_.emplace_back(std::move(key), std::move(value));
  if (string) {
    strings_.emplace(entries_.back().first.text->bytes, entries_.size() - 1);
  } else {
    others_.push_back(entries_.size() - 1);
  }
}

bool truthy(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      if (value.missing == Missing::kUnsafe) fail_undefined(value);
      return false;
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean;
    case Kind::kInt:
      return value.integer != 0;
    case Kind::kFloat:
      return value.real != 0;
    case Kind::kString:
      return !value.text->bytes.empty();
    case Kind::kList:
      return value.list().kind == ListKind::kIterator || !value.list().items.empty();
    case Kind::kDict:
      return !value.dict().entries().empty();
    default:
      return true;
  }
}

bool equal(const Value& a, const Value& b, int depth) {
  check_depth(depth);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_integer() == b.as_integer();
    return a.as_real() == b.as_real();
  }
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.text->bytes == b.text->bytes;
    case Kind::kList:
      if (a.object == b.object) return true;
      return a.list().kind != ListKind::kIterator && equal_lists(a.list(), b.list(), depth);
    case Kind::kDict:
      return a.object == b.object || equal_dicts(a.dict(), b.dict(), depth);
    default:
      return a.object == b.object;
  }
}

int compare(const Value& a, const Value& b, int depth) {
  check_depth(depth);
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) {
      const int64_t x = a.as_integer();
      const int64_t y = b.as_integer();
      return x < y ? -1 : (x > y ? 1 : 0);
    }
    return three_way(a.as_real(), b.as_real());
  }
  // UTF-8 keeps the order of code points.
  if (a.is_string() && b.is_string()) {
    const int order = a.text->bytes.compare(b.text->bytes);
    return order < 0 ? -1 : (order > 0 ? 1 : 0);
  }
  if (is_sequence(a) && is_sequence(b) && a.list().kind == b.list().kind) {
    const auto& x = a.list().items;
    const auto& y = b.list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i], depth + 1)) return compare(x[i], y[i], depth + 1);
    }
    return x.size() < y.size() ? -1 : (x.size() > y.size() ? 1 : 0);
  }
  fail_argument("chat template: no order between '{}' and '{}'", type_name(a), type_name(b));
}

bool contains(const Value& haystack, const Value& needle) {
  switch (haystack.kind) {
    case Kind::kUndefined:
      if (haystack.missing == Missing::kUnsafe) fail_undefined(haystack);
      return false;
    case Kind::kString:
      if (!needle.is_string()) {
        if (needle.soft) return true;  // the empty text is in every text
        fail_argument("chat template: 'in <string>' needs a string on the left, got '{}'",
                      type_name(needle));
      }
      return haystack.text->bytes.find(needle.text->bytes) != std::string::npos;
    case Kind::kList: {
      const auto& items = haystack.list().items;
      return std::any_of(items.begin(), items.end(),
                         [&](const Value& item) { return equal(item, needle); });
    }
    case Kind::kDict:
      return haystack.dict().find(needle) != nullptr;
    case Kind::kNone:
      if (haystack.soft) return false;
      [[fallthrough]];
    default:
      fail_argument("chat template: argument of type '{}' is not iterable", type_name(haystack));
  }
}

std::string_view type_name(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCallable:
      return "function";
    case Kind::kList:
      break;
  }
  switch (value.list().kind) {
    case ListKind::kTuple:
      return "tuple";
    case ListKind::kRange:
      return "range";
    case ListKind::kIterator:
      return "generator";
    case ListKind::kKeys:
      return "dict_keys";
    case ListKind::kValues:
      return "dict_values";
    case ListKind::kItems:
      return "dict_items";
    case ListKind::kList:
      break;
  }
  return "list";
}

void fail_undefined(const Value& value) {
  const std::string what = value.text == nullptr ? "a value" : value.text->bytes;
  switch (value.missing) {
    case Missing::kAttribute:
      fail_argument("chat template: {}", what);
    case Missing::kUnsafe:
      fail_argument("chat template: access to {} is unsafe", what);
    case Missing::kParameter:
      fail_argument("chat template: parameter '{}' was not provided", what);
    case Missing::kName:
      break;
  }
  fail_argument("chat template: '{}' is undefined", what);
}

}  // namespace coppice::jinja
