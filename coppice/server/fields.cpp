#include "coppice/server/fields.h"

#include <cmath>
#include <utility>

#include "coppice/server/api_error.h"

namespace coppice {
namespace {

constexpr JsonLimits kBodyLimits = {.max_depth = 64, .reject_duplicate_keys = true};
// Objects that keep the order of their keys are searched from the front: many keys cost the square.
constexpr std::size_t kMaxKeys = 1024;

void check_keys(const Json& value) {
  if (value.is_object() && value.size() > kMaxKeys) {
    fail_argument("request body: an object with {} keys, at most {} are allowed", value.size(),
                  kMaxKeys);
  }
  if (!value.is_structured()) return;
  for (const Json& inner : value) check_keys(inner);  // the depth is bounded
}

std::string shown(const Json& value) {
  if (value.is_string()) return "the string " + in_quotes(value.get_ref<const std::string&>());
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return dump_json(value);
}

}  // namespace

Json parse_body(std::string_view body) {
  try {
    Json parsed = parse_json(body, "request body", kBodyLimits);
    check_keys(parsed);
    if (!parsed.is_object()) {
      throw ApiError(400,
                     fmt::format("request body: expected a JSON object, got {}", shown(parsed)));
    }
    return parsed;
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    throw ApiError(400, error.what(), {}, "invalid_json");
  }
}

int64_t read_integer(const Json& value, const std::string& name, int64_t low, int64_t high) {
  const bool whole = value.is_number_integer();
  const bool too_large =
      value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!whole || too_large || value.get<int64_t>() < low || value.get<int64_t>() > high) {
    refuse_field(name, "expected a whole number from {} to {}, got {}", low, high, shown(value));
  }
  return value.get<int64_t>();
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) refuse_field(path_, "expected an object, got {}", shown(object));
}

std::string Fields::full_name(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

bool Fields::has(std::string_view name) const {
  const auto found = object_.find(name);
  return found != object_.end() && !found->is_null();
}

const Json* Fields::find(std::string_view name) {
  known_.emplace(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    refuse_field(full_name(name), "expected true or false, got {}", shown(*value));
  }
  return value->get<bool>();
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t low, int64_t high) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return read_integer(*value, full_name(name), low, high);
}

std::optional<double> Fields::number(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    refuse_field(full_name(name), "expected a number, got {}", shown(*value));
  }
  return value->get<double>();
}

std::optional<std::string> Fields::text(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    refuse_field(full_name(name), "expected a string, got {}", shown(*value));
  }
  return value->get<std::string>();
}

void Fields::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) known_.emplace(name);
}

void Fields::expect_only(std::string_view name, const Json& neutral) {
  const Json* value = find(name);
  if (value != nullptr && *value != neutral) {
    refuse_field(full_name(name), "not supported by this server, except as {}", dump_json(neutral));
  }
}

void Fields::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    const std::string shown_name = in_quotes(name);
    throw ApiError(400, fmt::format("this server does not know the field {}", shown_name),
                   full_name(shown_name.substr(1, shown_name.rfind('"') - 1)),
                   "unsupported_parameter");
  }
}

}  // namespace coppice
