// Methods of lists and dicts, and the global functions.
#include <algorithm>
#include <array>

#include "coppice/core/error.h"
#include "coppice/processor/jinja_runtime.h"

namespace coppice::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;

Value dict_get(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("get", args);
  const Value& key = reader.require("key");
  const Value* absent = reader.next("default");
  reader.finish();
  runtime.step();
  const DictObject& dict = self.dict();
  if (const Value* found = dict.find(key)) return *found;
  Value value = absent == nullptr ? Value::none() : *absent;
  const bool nothing = value.is_none() || value.is_undefined();
  if (nothing && dict.soft_content && key.is_string() && key.text->bytes == "content") {
    value.soft = true;
  }
  return value;
}

template <ListKind kind>
Value dict_view(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader("view of a dict", args).finish();
  const auto& entries = self.dict().entries();
  runtime.step(static_cast<int64_t>(entries.size()));
  std::vector<Value> items;
  for (const auto& [key, value] : entries) {
    if (kind == ListKind::kKeys) items.push_back(key);
    if (kind == ListKind::kValues) items.push_back(value);
    if (kind == ListKind::kItems) items.push_back(runtime.list({key, value}, ListKind::kTuple));
  }
  return runtime.list(std::move(items), kind);
}

// Values do not change, so a copy is the value itself.
Value copy(Runtime&, const Value& self, const Args& args) {
  ArgReader("copy", args).finish();
  return self;
}

Value list_index(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("index", args);
  const Value& wanted = reader.require("value");
  reader.finish();
  const auto& items = runtime.elements(self);
  for (size_t i = 0; i < items.size(); ++i) {
    if (equal(items[i], wanted)) return Value::of(static_cast<int64_t>(i));
  }
  fail_argument("chat template: the value is not in the list");
}

Value list_count(Runtime& runtime, const Value& self, const Args& args) {
  ArgReader reader("count", args);
  const Value& wanted = reader.require("value");
  reader.finish();
  const auto& items = runtime.elements(self);
  return Value::of(static_cast<int64_t>(std::count_if(
      items.begin(), items.end(), [&](const Value& item) { return equal(item, wanted); })));
}

Value global_range(Runtime& runtime, const Args& args) {
  if (!args.named.empty() || args.positional.empty() || args.positional.size() > 3) {
    fail_argument("chat template: range() takes 1 to 3 arguments");
  }
  int64_t bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < args.positional.size(); ++i) {
    const Value& value = args.positional[i];
    if (value.is_undefined()) fail_undefined(value);
    if (!value.is_integral()) {
      fail_argument("chat template: range() needs integers, got '{}'", type_name(value));
    }
    bounds[args.positional.size() == 1 ? 1 : i] = value.as_integer();
  }
  const auto [start, stop, step] = bounds;
  if (step == 0) fail_argument("chat template: range() step must not be zero");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      fail_argument("chat template: range() of more than {} items", kMaxRange);
    }
    items.push_back(Value::of(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  runtime.step(static_cast<int64_t>(items.size()));
  return runtime.list(std::move(items), ListKind::kRange);
}

// dict(mapping or pairs, name=value, ...).
DictObject& make_dict(Runtime& runtime, const Args& args, std::string_view function) {
  DictObject& dict = runtime.new_dict();
  if (args.positional.size() > 1) {
    fail_argument("chat template: {}() takes at most 1 positional argument, got {}", function,
                  args.positional.size());
  }
  const auto set = [&](const Value& key, const Value& value) {
    runtime.use_bytes(static_cast<int64_t>(4 * sizeof(Value)));
    runtime.step(key.is_string() ? 1 : static_cast<int64_t>(dict.entries().size()) + 1);
    dict.set(key, value);
  };
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.kind == Kind::kDict || source.kind == Kind::kNamespace) {
      for (const auto& [key, value] : source.dict().entries()) set(key, value);
    } else {
      for (const Value& pair : runtime.elements(source)) {
        const auto& parts = runtime.elements(pair);
        if (parts.size() != 2) {
          fail_argument("chat template: {}() needs pairs, got {} values", function, parts.size());
        }
        set(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) set(Value::string(name), value);
  return dict;
}

Value global_dict(Runtime& runtime, const Args& args) {
  return Value::of(&make_dict(runtime, args, "dict"));
}

Value global_namespace(Runtime& runtime, const Args& args) {
  DictObject& dict = make_dict(runtime, args, "namespace");
  for (const auto& [key, value] : dict.entries()) {
    if (key.is_string() && key.text->bytes.starts_with('_')) {
      fail_argument("chat template: a namespace holds no attribute '{}' that begins with '_'",
                    key.text->bytes);
    }
  }
  return Value::of(&dict, Kind::kNamespace);
}

Value global_raise_exception(Runtime&, const Args& args) {
  ArgReader reader("raise_exception", args);
  const auto message = text_of(reader.require("message"));
  reader.finish();
  fail_argument("the chat template refuses the request: {}", message->bytes);
}

Value global_strftime_now(Runtime& runtime, const Args& args) {
  ArgReader reader("strftime_now", args);
  const Text& format = require_text(reader.require("format"), "format");
  reader.finish();
  if (format.bytes.size() > 256) {
    fail_argument("chat template: strftime_now() takes a format of at most 256 bytes, got {}",
                  format.bytes.size());
  }
  const std::tm now = runtime.clock()();
  // The space makes an empty result differ from a failure.
  const std::string padded = format.bytes + " ";
  char buffer[8192];
  const size_t size = std::strftime(buffer, sizeof(buffer), padded.c_str(), &now);
  if (size == 0) fail_argument("chat template: strftime_now() cannot format the time");
  TextBuilder out;
  out.append(std::string_view(buffer, size - 1), !format.plain.empty());
  return runtime.text(out.take());
}

template <typename Function>
struct Entry {
  std::string_view name;
  Function function;
};

constexpr std::array kDictMethods = {
    Entry<MethodFunction>{"get", dict_get},
    Entry<MethodFunction>{"items", dict_view<ListKind::kItems>},
    Entry<MethodFunction>{"keys", dict_view<ListKind::kKeys>},
    Entry<MethodFunction>{"values", dict_view<ListKind::kValues>},
    Entry<MethodFunction>{"copy", copy},
};
constexpr std::array kListMethods = {
    Entry<MethodFunction>{"index", list_index},
    Entry<MethodFunction>{"count", list_count},
    Entry<MethodFunction>{"copy", copy},
};
constexpr std::array kGlobals = {
    Entry<GlobalFunction>{"range", global_range},
    Entry<GlobalFunction>{"dict", global_dict},
    Entry<GlobalFunction>{"namespace", global_namespace},
    Entry<GlobalFunction>{"raise_exception", global_raise_exception},
    Entry<GlobalFunction>{"strftime_now", global_strftime_now},
};
constexpr std::array<std::string_view, 5> kUnsafeDict = {"clear", "pop", "popitem", "setdefault",
                                                         "update"};
constexpr std::array<std::string_view, 8> kUnsafeList = {"append", "clear",  "extend",  "insert",
                                                         "pop",    "remove", "reverse", "sort"};

template <typename Function, size_t size>
Function find_in(const std::array<Entry<Function>, size>& entries, std::string_view name) {
  for (const auto& entry : entries) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace

MethodFunction find_container_method(const Value& self, std::string_view name, bool& unsafe) {
  if (self.kind == Kind::kDict) {
    unsafe = std::find(kUnsafeDict.begin(), kUnsafeDict.end(), name) != kUnsafeDict.end();
    return find_in(kDictMethods, name);
  }
  const ListKind kind = self.list().kind;
  if (kind == ListKind::kList) {
    unsafe = std::find(kUnsafeList.begin(), kUnsafeList.end(), name) != kUnsafeList.end();
    return find_in(kListMethods, name);
  }
  if (kind != ListKind::kTuple && kind != ListKind::kRange) return nullptr;
  return name == "copy" ? nullptr : find_in(kListMethods, name);
}

GlobalFunction find_global(std::string_view name) { return find_in(kGlobals, name); }

}  // namespace coppice::jinja
