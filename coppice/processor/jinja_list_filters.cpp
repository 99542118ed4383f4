// Filters on sequences and mappings.
#include <algorithm>
#include <array>
#include <charconv>

#include "coppice/core/error.h"
#include "coppice/processor/jinja_runtime.h"

namespace coppice::jinja {
namespace {

// The parts of "a.b.0"; digits are indices. None is the item itself.
std::vector<Value> attribute_path(const Value& attribute) {
  if (attribute.is_none()) return {};
  if (!attribute.is_string()) return {attribute};
  std::vector<Value> path;
  for (Text& part : split_text(*attribute.text, ".", -1, false)) {
    int64_t index = 0;
    const char* last = part.bytes.data() + part.bytes.size();
    const auto result = std::from_chars(part.bytes.data(), last, index);
    const bool number = result.ec == std::errc{} && result.ptr == last && part.bytes[0] != '-';
    path.push_back(number ? Value::of(index) : Value::of(std::move(part)));
  }
  return path;
}

Value follow(Runtime& runtime, Value value, const std::vector<Value>& path,
             const Value* absent = nullptr) {
  for (const Value& part : path) {
    value = runtime.item(value, part);
    if (absent != nullptr && value.is_undefined()) value = *absent;
  }
  return value;
}

Value folded(const Value& value) {
  return value.is_string() ? Value::of(change_case(*value.text, CaseChange::kLower)) : value;
}

void stable_sort(Runtime& runtime, std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
  // Insertion by merge: the comparison may throw, which std::stable_sort allows.
  runtime.step(static_cast<int64_t>(keyed.size()) * 8);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? compare(b.first, a.first) == -1 : compare(a.first, b.first) == -1;
  });
}

Value filter_sort(Runtime& runtime, const Value& input, const Args& args) {
  ArgReader reader("sort", args);
  const bool reverse = reader.boolean("reverse", false);
  const bool case_sensitive = reader.boolean("case_sensitive", false);
  const Value* attribute = reader.next("attribute");
  reader.finish();
  std::vector<std::vector<Value>> paths;
  if (attribute != nullptr && attribute->is_string()) {
    for (Text& part : split_text(*attribute->text, ",", -1, false)) {
      paths.push_back(attribute_path(Value::of(std::move(part))));
    }
  } else {
    paths.push_back(attribute == nullptr ? std::vector<Value>{} : attribute_path(*attribute));
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : runtime.elements(input)) {
    std::vector<Value> key;
    for (const auto& path : paths) {
      const Value part = follow(runtime, item, path);
      key.push_back(case_sensitive ? part : folded(part));
    }
    keyed.emplace_back(runtime.list(std::move(key)), item);
  }
  stable_sort(runtime, keyed, reverse);
  std::vector<Value> sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return runtime.list(std::move(sorted));
}

Value filter_dictsort(Runtime& runtime, const Value& input, const Args& args) {
  ArgReader reader("dictsort", args);
  const bool case_sensitive = reader.boolean("case_sensitive", false);
  const std::string by = reader.text("by", "key").bytes;
  const bool reverse = reader.boolean("reverse", false);
  reader.finish();
  if (by != "key" && by != "value") {
    fail_argument("chat template: dictsort() sorts by 'key' or 'value', got '{}'", by);
  }
  if (input.is_undefined()) fail_undefined(input);
  if (input.kind != Kind::kDict) {
    fail_argument("chat template: dictsort() needs a mapping, got '{}'", type_name(input));
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.dict().entries()) {
    const Value& order = by == "key" ? key : value;
    keyed.emplace_back(case_sensitive ? order : folded(order),
                       runtime.list({key, value}, ListKind::kTuple));
  }
  stable_sort(runtime, keyed, reverse);
  std::vector<Value> sorted;
  for (auto& [key, item] : keyed) sorted.push_back(std::move(item));
  return runtime.list(std::move(sorted));
}

Value filter_items(Runtime& runtime, const Value& input, const Args&) {
  std::vector<Value> pairs;
  if (!input.is_undefined()) {
    if (input.kind != Kind::kDict) {
      fail_argument("chat template: items needs a mapping, got '{}'", type_name(input));
    }
    for (const auto& [key, value] : input.dict().entries()) {
      pairs.push_back(runtime.list({key, value}, ListKind::kTuple));
    }
  }
  return runtime.list(std::move(pairs), ListKind::kIterator);
}

Value filter_join(Runtime& runtime, const Value& input, const Args& args) {
  ArgReader reader("join", args);
  const Value* separator = reader.next("d");
  const Value* attribute = reader.next("attribute");
  reader.finish();
  const auto between = separator == nullptr ? text_of(Value::string("")) : text_of(*separator);
  const auto path = attribute == nullptr ? std::vector<Value>{} : attribute_path(*attribute);
  TextBuilder out;
  bool first = true;
  for (const Value& item : runtime.elements(input)) {
    const auto part = text_of(follow(runtime, item, path));
    runtime.use_bytes(static_cast<int64_t>(part->bytes.size() + between->bytes.size()));
    if (!first) out.append(*between);
    out.append(*part);
    first = false;
  }
  return Value::of(out.take());
}

Value filter_first(Runtime& runtime, const Value& input, const Args&) {
  const auto& items = runtime.elements(input);
  return items.empty()
             ? Value::undefined("no first item, the sequence was empty", Missing::kAttribute)
             : items.front();
}

Value filter_last(Runtime& runtime, const Value& input, const Args&) {
  if (input.kind == Kind::kList && input.list().kind == ListKind::kIterator) {
    fail_argument("chat template: 'generator' object is not reversible");
  }
  const auto& items = runtime.elements(input);
  return items.empty()
             ? Value::undefined("no last item, the sequence was empty", Missing::kAttribute)
             : items.back();
}

Value filter_list(Runtime& runtime, const Value& input, const Args&) {
  return runtime.list(runtime.elements(input));
}

Value filter_reverse(Runtime& runtime, const Value& input, const Args&) {
  if (input.is_string())
    return runtime.slice(input, Value::none(), Value::none(), Value::of(int64_t{-1}));
  std::vector<Value> items = runtime.elements(input);
  std::reverse(items.begin(), items.end());
  return runtime.list(std::move(items), ListKind::kIterator);
}

Value filter_unique(Runtime& runtime, const Value& input, const Args& args) {
  ArgReader reader("unique", args);
  const bool case_sensitive = reader.boolean("case_sensitive", false);
  const Value* attribute = reader.next("attribute");
  reader.finish();
  const auto path = attribute == nullptr ? std::vector<Value>{} : attribute_path(*attribute);
  DictObject& seen = runtime.new_dict();
  std::vector<Value> kept;
  for (const Value& item : runtime.elements(input)) {
    const Value value = follow(runtime, item, path);
    Value key = case_sensitive ? value : folded(value);
    if (!key.is_string()) runtime.step(static_cast<int64_t>(seen.entries().size()));
    if (seen.find(key) != nullptr) continue;
    seen.set(std::move(key), Value::none());
    kept.push_back(item);
  }
  return runtime.list(std::move(kept), ListKind::kIterator);
}

template <bool largest>
Value filter_extreme(Runtime& runtime, const Value& input, const Args& args) {
  ArgReader reader(largest ? "max" : "min", args);
  const bool case_sensitive = reader.boolean("case_sensitive", false);
  const Value* attribute = reader.next("attribute");
  reader.finish();
  const auto path = attribute == nullptr ? std::vector<Value>{} : attribute_path(*attribute);
  const auto& items = runtime.elements(input);
  if (items.empty())
    return Value::undefined("no aggregated item, the sequence was empty", Missing::kAttribute);
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items) {
    const Value value = follow(runtime, item, path);
    Value key = case_sensitive ? value : folded(value);
    if (best == nullptr || (largest ? compare(best_key, key) : compare(key, best_key)) == -1) {
      best = &item;
      best_key = std::move(key);
    }
  }
  return *best;
}

Value filter_sum(Runtime& runtime, const Value& input, const Args& args) {
  ArgReader reader("sum", args);
  const Value* attribute = reader.next("attribute");
  const Value* start = reader.next("start");
  reader.finish();
  const auto path = attribute == nullptr ? std::vector<Value>{} : attribute_path(*attribute);
  Value total = start == nullptr ? Value::of(int64_t{0}) : *start;
  for (const Value& item : runtime.elements(input)) {
    total = runtime.binary("+", total, follow(runtime, item, path));
  }
  return total;
}

Args without_first(const Args& args, size_t count) {
  Args rest;
  const size_t skipped = std::min(count, args.positional.size());
  rest.positional.assign(args.positional.begin() + static_cast<int64_t>(skipped),
                         args.positional.end());
  rest.named = args.named;
  return rest;
}

Value filter_map(Runtime& runtime, const Value& input, const Args& args) {
  std::vector<Value> mapped;
  if (!args.positional.empty()) {
    const std::string& name = require_text(args.positional[0], "filter").bytes;
    const Args rest = without_first(args, 1);
    for (const Value& item : runtime.elements(input)) {
      mapped.push_back(runtime.filter(name, item, rest));
    }
    return runtime.list(std::move(mapped), ListKind::kIterator);
  }
  ArgReader reader("map", args);
  const auto path = attribute_path(reader.require("attribute"));
  const Value* absent = reader.next("default");
  reader.finish();
  for (const Value& item : runtime.elements(input)) {
    mapped.push_back(follow(runtime, item, path, absent));
  }
  return runtime.list(std::move(mapped), ListKind::kIterator);
}

// select, reject, selectattr and rejectattr.
template <bool wanted, bool by_attribute>
Value filter_select(Runtime& runtime, const Value& input, const Args& args) {
  std::vector<Value> kept;
  if (truthy(input)) {
    std::vector<Value> path;
    constexpr size_t kOffset = by_attribute ? 1 : 0;
    if (by_attribute) {
      if (args.positional.empty()) fail_argument("chat template: an attribute name is missing");
      path = attribute_path(args.positional[0]);
    }
    const bool has_test = args.positional.size() > kOffset;
    const std::string name = has_test ? require_text(args.positional[kOffset], "test").bytes : "";
    const Args rest = without_first(args, kOffset + 1);
    for (const Value& item : runtime.elements(input)) {
      const Value value = follow(runtime, item, path);
      const bool passed = has_test ? runtime.test(name, value, rest) : truthy(value);
      if (passed == wanted) kept.push_back(item);
    }
  }
  return runtime.list(std::move(kept), ListKind::kIterator);
}

Value filter_batch(Runtime& runtime, const Value& input, const Args& args) {
  ArgReader reader("batch", args);
  const int64_t count = reader.integer("linecount", 1);
  const Value* fill = reader.next("fill_with");
  reader.finish();
  if (count < 1 || count > 100000) {
    fail_argument("chat template: batch() takes 1 to 100000 items a line, got {}", count);
  }
  std::vector<Value> lines;
  std::vector<Value> line;
  const auto flush = [&] { lines.push_back(runtime.list(std::exchange(line, {}))); };
  for (const Value& item : runtime.elements(input)) {
    if (static_cast<int64_t>(line.size()) == count) flush();
    line.push_back(item);
  }
  if (!line.empty()) {
    if (fill != nullptr && !fill->is_none()) line.resize(static_cast<size_t>(count), *fill);
    flush();
  }
  return runtime.list(std::move(lines), ListKind::kIterator);
}

Value filter_groupby(Runtime& runtime, const Value& input, const Args& args) {
  ArgReader reader("groupby", args);
  const auto path = attribute_path(reader.require("attribute"));
  const Value* absent = reader.next("default");
  const bool case_sensitive = reader.boolean("case_sensitive", false);
  reader.finish();
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : runtime.elements(input)) {
    const Value key = follow(runtime, item, path, absent);
    keyed.emplace_back(case_sensitive ? key : folded(key), item);
  }
  stable_sort(runtime, keyed, false);
  std::vector<Value> groups;
  for (size_t i = 0; i < keyed.size();) {
    std::vector<Value> members;
    const size_t first = i;
    for (; i < keyed.size() && equal(keyed[i].first, keyed[first].first); ++i) {
      members.push_back(keyed[i].second);
    }
    const Value name = follow(runtime, members.front(), path, absent);
    groups.push_back(runtime.list({name, runtime.list(std::move(members))}, ListKind::kTuple));
  }
  return runtime.list(std::move(groups));
}

struct Entry {
  std::string_view name;
  FilterFunction function;
};

constexpr std::array kFilters = {
    Entry{"batch", filter_batch},
    Entry{"dictsort", filter_dictsort},
    Entry{"first", filter_first},
    Entry{"groupby", filter_groupby},
    Entry{"items", filter_items},
    Entry{"join", filter_join},
    Entry{"last", filter_last},
    Entry{"list", filter_list},
    Entry{"map", filter_map},
    Entry{"max", filter_extreme<true>},
    Entry{"min", filter_extreme<false>},
    Entry{"reject", filter_select<false, false>},
    Entry{"rejectattr", filter_select<false, true>},
    Entry{"reverse", filter_reverse},
    Entry{"select", filter_select<true, false>},
    Entry{"selectattr", filter_select<true, true>},
    Entry{"sort", filter_sort},
    Entry{"sum", filter_sum},
    Entry{"unique", filter_unique},
};

}  // namespace

FilterFunction find_list_filter(std::string_view name) {
  for (const Entry& entry : kFilters) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace coppice::jinja
