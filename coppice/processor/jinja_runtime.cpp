#include "coppice/processor/jinja_runtime.h"

#include <algorithm>

#include "coppice/core/error.h"

namespace coppice::jinja {
namespace {

constexpr int64_t kValueBytes = static_cast<int64_t>(sizeof(Value)) + 16;
constexpr std::string_view kMessagePrefix = "chat template: ";

Value missing_attribute(const Value& object, std::string_view what) {
  return Value::undefined(fmt::format("'{} object' has no attribute '{}'", type_name(object), what),
                          Missing::kAttribute);
}

// A bound of a slice: None and absent are the same.
std::optional<int64_t> slice_bound(const Value& value) {
  if (value.is_none()) return std::nullopt;
  if (!value.is_integral()) {
    fail_argument("chat template: slice indices must be integers or None, got '{}'",
                  type_name(value));
  }
  return value.as_integer();
}

}  // namespace

const Value* ArgReader::next(std::string_view name) {
  if (position_ < args_.positional.size()) return &args_.positional[position_++];
  for (const auto& [given, value] : args_.named) {
    if (given != name) continue;
    ++named_used_;
    return &value;
  }
  return nullptr;
}

const Value& ArgReader::require(std::string_view name) {
  const Value* value = next(name);
  if (value == nullptr)
    fail_argument("chat template: {}() needs the argument '{}'", function_, name);
  return *value;
}

int64_t ArgReader::integer(std::string_view name, int64_t absent) {
  const Value* value = next(name);
  if (value == nullptr) return absent;
  if (!value->is_integral()) {
    fail_argument("chat template: {}(): '{}' must be an integer, got '{}'", function_, name,
                  type_name(*value));
  }
  return value->as_integer();
}

bool ArgReader::boolean(std::string_view name, bool absent) {
  const Value* value = next(name);
  return value == nullptr ? absent : truthy(*value);
}

Text ArgReader::text(std::string_view name, std::string_view absent) {
  const Value* value = next(name);
  if (value == nullptr) return Text{std::string(absent), {}, false};
  return require_text(*value, name);
}

void ArgReader::finish() const {
  if (position_ < args_.positional.size()) {
    fail_argument("chat template: {}() takes at most {} arguments, got {}", function_, position_,
                  args_.positional.size());
  }
  if (named_used_ < args_.named.size()) {
    fail_argument(
        "chat template: {}() got an unexpected argument, or one twice, among its {} named",
        function_, args_.named.size());
  }
}

const Value* Scope::find(std::string_view name) const {
  for (const auto& [known, value] : names) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, old] : names) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  names.emplace_back(std::string(name), std::move(value));
}

Runtime::Runtime(const Limits& limits, const Clock& clock) : limits_(limits), clock_(clock) {}

Text Runtime::render(const std::vector<NodePtr>& body) {
  push_scope(nullptr);
  scope_ = scopes_.back().get();
  TextBuilder out;
  out_ = &out;
  result_ = &out;
  try {
    execute(body);
  } catch (const Error& error) {
    const std::string_view message = error.what();
    if (!message.starts_with(kMessagePrefix)) throw;
    throw Error(error.code(), fmt::format("chat template, line {}: {}", line_,
                                          message.substr(kMessagePrefix.size())));
  }
  return out.take();
}

void Runtime::watch(const std::vector<Value>& dicts) {
  for (size_t i = 0; i < dicts.size(); ++i) watched_.emplace(dicts[i].object, i);
}

ListObject& Runtime::new_list(ListKind kind, std::vector<Value> items) {
  auto list = std::make_unique<ListObject>();
  list->kind = kind;
  list->items = std::move(items);
  use_bytes(static_cast<int64_t>(list->items.size()) * kValueBytes);
  return own(std::move(list));
}

DictObject& Runtime::new_dict() { return own(std::make_unique<DictObject>()); }

CallableObject& Runtime::new_callable(CallableObject::Type type, std::string name) {
  auto callable = std::make_unique<CallableObject>();
  callable->type = type;
  callable->name = std::move(name);
  return own(std::move(callable));
}

Scope& Runtime::push_scope(Scope* parent) {
  scopes_.push_back(std::make_unique<Scope>());
  scopes_.back()->parent = parent;
  use_bytes(static_cast<int64_t>(sizeof(Scope)) + 4 * kValueBytes);
  return *scopes_.back();
}

Value Runtime::text(Text text) {
  use_bytes(static_cast<int64_t>(text.bytes.size()));
  return Value::of(std::move(text));
}

Value Runtime::texts(std::vector<Text> texts) {
  std::vector<Value> items;
  items.reserve(texts.size());
  for (Text& part : texts) items.push_back(text(std::move(part)));
  return list(std::move(items));
}

void Runtime::step(int64_t count) {
  steps_ += count;
  if (steps_ > limits_.max_steps) {
    fail_argument("chat template: more than {} steps of evaluation", limits_.max_steps);
  }
}

void Runtime::use_bytes(int64_t count) {
  if (count > limits_.max_bytes - bytes_) {
    fail_argument("chat template: needs more than {} bytes of memory", limits_.max_bytes);
  }
  bytes_ += count;
}

void Runtime::check_product(int64_t size, int64_t count) {
  if (size > 0 && count > (limits_.max_bytes - bytes_) / size) {
    fail_argument("chat template: needs more than {} bytes of memory", limits_.max_bytes);
  }
}

Value Runtime::attribute(const Value& object, std::string_view name) {
  if (object.soft) return attribute(hardened(object), name);
  if (name.starts_with("__")) {
    return Value::undefined(fmt::format("attribute '{}' of '{}' object", name, type_name(object)),
                            Missing::kUnsafe);
  }
  bool unsafe = false;
  bool method = false;
  switch (object.kind) {
    case Kind::kUndefined:
      fail_undefined(object);
    case Kind::kString:
      method = find_text_method(name) != nullptr;
      break;
    case Kind::kList:
    case Kind::kDict:
      method = find_container_method(object, name, unsafe) != nullptr;
      break;
    case Kind::kLoop:
      return loop_attribute(object, name);
    default:
      break;
  }
  if (unsafe) {
    return Value::undefined(fmt::format("attribute '{}' of '{}' object", name, type_name(object)),
                            Missing::kUnsafe);
  }
  if (method) {
    CallableObject& bound = new_callable(CallableObject::Type::kMethod, std::string(name));
    bound.self = object;
    return Value::of(&bound);
  }
  if (object.kind == Kind::kDict || object.kind == Kind::kNamespace) {
    if (const Value* found = object.dict().find(name)) return *found;
    Value missing = missing_attribute(object, name);
    missing.soft = object.dict().soft_content && name == "content";
    return missing;
  }
  return missing_attribute(object, name);
}

Value Runtime::item(const Value& object, const Value& key) {
  if (object.soft) return item(hardened(object), key);
  if (object.is_undefined()) fail_undefined(object);
  if (object.kind == Kind::kDict) {
    if (key.kind == Kind::kList || key.kind == Kind::kDict) step(16);
    if (const Value* found = object.dict().find(key)) return *found;
  } else if (key.is_integral() && (object.kind == Kind::kList || object.is_string())) {
    if (object.is_string()) {
      step(1 + static_cast<int64_t>(object.text->bytes.size() / 64));
      if (auto found = char_at(*object.text, key.as_integer())) return text(std::move(*found));
    } else if (object.list().kind != ListKind::kIterator) {
      const auto& items = object.list().items;
      const auto size = static_cast<int64_t>(items.size());
      const int64_t index = key.as_integer() < 0 ? key.as_integer() + size : key.as_integer();
      if (index >= 0 && index < size) return items[static_cast<size_t>(index)];
    }
  }
  if (key.is_string()) return attribute(object, key.text->bytes);
  return missing_attribute(object, to_text(key).bytes);
}

Value Runtime::slice(const Value& object, const Value& start, const Value& stop,
                     const Value& step_value) {
  if (object.soft) return Value::string("");
  if (object.is_undefined()) fail_undefined(object);
  const int64_t stride = step_value.is_none() ? 1 : slice_bound(step_value).value();
  if (stride == 0) fail_argument("chat template: slice step cannot be zero");
  const auto first = slice_bound(start);
  const auto last = slice_bound(stop);
  if (object.is_string()) {
    step(1 + static_cast<int64_t>(object.text->bytes.size() / 64));
    return text(slice_text(*object.text, first, last, stride));
  }
  const bool sliceable = object.kind == Kind::kList && (object.list().kind == ListKind::kList ||
                                                        object.list().kind == ListKind::kTuple ||
                                                        object.list().kind == ListKind::kRange);
  if (!sliceable) return missing_attribute(object, "slice");
  const auto& items = object.list().items;
  const auto size = static_cast<int64_t>(items.size());
  const int64_t low = stride > 0 ? 0 : -1;
  const int64_t high = stride > 0 ? size : size - 1;
  const auto bound = [&](std::optional<int64_t> value, int64_t absent) {
    if (!value) return absent;
    return std::clamp(*value < 0 ? *value + size : *value, low, high);
  };
  const int64_t begin = bound(first, stride > 0 ? low : high);
  const int64_t end = bound(last, stride > 0 ? high : low);
  std::vector<Value> picked;
  for (int64_t i = begin; stride > 0 ? i < end : i > end;) {
    picked.push_back(items[static_cast<size_t>(i)]);
    if (stride > 0 ? stride >= end - i : stride <= end - i) break;
    i += stride;
  }
  step(static_cast<int64_t>(picked.size()));
  return list(std::move(picked), object.list().kind);
}

const std::vector<Value>& Runtime::elements(const Value& value) {
  if (value.soft) return new_list(ListKind::kList).items;
  switch (value.kind) {
    case Kind::kList: {
      ListObject& source = value.list();
      step(static_cast<int64_t>(source.items.size()));
      if (source.kind != ListKind::kIterator) return source.items;
      // An iterator gives its elements once.
      return new_list(ListKind::kList, std::move(source.items)).items;
    }
    case Kind::kUndefined:
      if (value.missing == Missing::kUnsafe) fail_undefined(value);
      return new_list(ListKind::kList).items;
    case Kind::kString: {
      const int64_t count = char_count(value.text->bytes);
      step(count);
      check_product(3 * kValueBytes, count);
      return texts(split_chars(*value.text)).list().items;
    }
    case Kind::kDict: {
      std::vector<Value> keys;
      for (const auto& entry : value.dict().entries()) keys.push_back(entry.first);
      step(static_cast<int64_t>(keys.size()));
      return new_list(ListKind::kList, std::move(keys)).items;
    }
    default:
      fail_argument("chat template: '{}' object is not iterable", type_name(value));
  }
}

int64_t Runtime::length(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      if (value.missing == Missing::kUnsafe) fail_undefined(value);
      return 0;
    case Kind::kString:
      return char_count(value.text->bytes);
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().entries().size());
    case Kind::kLoop:
      return static_cast<int64_t>(value.loop().items->size());
    case Kind::kList:
      if (value.list().kind != ListKind::kIterator) {
        return static_cast<int64_t>(value.list().items.size());
      }
      break;
    case Kind::kNone:
      if (value.soft) return 0;
      break;
    default:
      break;
  }
  fail_argument("chat template: object of type '{}' has no len()", type_name(value));
}

Value hardened(const Value& value) { return value.soft ? Value::string("") : value; }

std::shared_ptr<const Text> text_of(const Value& value) {
  return value.is_string() ? value.text : std::make_shared<const Text>(to_text(value));
}

const Text& require_text(const Value& value, std::string_view what) {
  static const Text kEmpty;
  if (value.soft) return kEmpty;
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_string()) {
    fail_argument("chat template: '{}' must be a string, got '{}'", what, type_name(value));
  }
  return *value.text;
}

}  // namespace coppice::jinja
