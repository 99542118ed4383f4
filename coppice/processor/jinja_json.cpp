#include "coppice/processor/jinja_json.h"

#include <limits>

#include "coppice/core/error.h"

namespace coppice::jinja {
namespace {

constexpr int kMaxDepth = 190;

Value from_string(Runtime& runtime, const std::string& bytes, bool plain, std::string_view what) {
  if (!valid_utf8(bytes)) fail_argument("{}: a string is not valid UTF-8", what);
  Text text{bytes, {}, false};
  if (plain && !bytes.empty()) text.plain.push_back({0, static_cast<int64_t>(bytes.size())});
  return runtime.text(std::move(text));
}

}  // namespace

Value from_json(Runtime& runtime, const OrderedJson& json, bool plain, std::string_view what,
                int depth) {
  if (depth > kMaxDepth) fail_argument("{}: nested deeper than {} levels", what, kMaxDepth);
  switch (json.type()) {
    case OrderedJson::value_t::null:
      return Value::none();
    case OrderedJson::value_t::boolean:
      return Value::of(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return Value::of(json.get<int64_t>());
    case OrderedJson::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Value::of(static_cast<double>(number));
      }
      return Value::of(static_cast<int64_t>(number));
    }
    case OrderedJson::value_t::number_float:
      return Value::of(json.get<double>());
    case OrderedJson::value_t::string:
      return from_string(runtime, json.get_ref<const std::string&>(), plain, what);
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      for (const auto& item : json) {
        items.push_back(from_json(runtime, item, plain, what, depth + 1));
      }
      return runtime.list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      DictObject& dict = runtime.new_dict();
      for (const auto& [key, item] : json.items()) {
        Value name = from_string(runtime, key, plain, what);
        runtime.use_bytes(static_cast<int64_t>(4 * sizeof(Value)));
        dict.set(std::move(name), from_json(runtime, item, plain, what, depth + 1));
      }
      return Value::of(&dict);
    }
    default:
      break;
  }
  fail_argument("{}: a value that is not JSON", what);
}

}  // namespace coppice::jinja
