// Reads the fields of a JSON object one by one, with their types checked, and refuses what nobody
// asked for. Every refusal is an ApiError 400 that names the field.
//
// null is an absent field, as in OpenAI's API, except where a reader says otherwise.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "coppice/core/json.h"

namespace coppice {

// The body of a request: valid UTF-8 JSON, an object, at most 64 levels deep, no key twice, at most
// 1,024 keys in an object. Throws ApiError 400.
Json parse_body(std::string_view body);

class Fields final {
 public:
  // `path` stands before the names in messages: "kv" makes "kv.budget". `object` must outlive it.
  // Throws where it is no object.
  explicit Fields(const Json& object, std::string path = {});

  bool has(std::string_view name) const;  // and is not null
  // The value; nullptr where absent or null.
  const Json* find(std::string_view name);
  std::optional<bool> boolean(std::string_view name);
  // A whole number in [low, high]; 5.0 is none.
  std::optional<int64_t> integer(std::string_view name,
                                 int64_t low = std::numeric_limits<int64_t>::min(),
                                 int64_t high = std::numeric_limits<int64_t>::max());
  std::optional<double> number(std::string_view name);  // finite
  std::optional<std::string> text(std::string_view name);
  // Accepted and without effect, as the API says.
  void ignore(std::initializer_list<std::string_view> names);
  // The field may stand there with its neutral value alone.
  void expect_only(std::string_view name, const Json& neutral);

  std::string full_name(std::string_view name) const;
  // Refuses the first field that was not asked for.
  void finish() const;

 private:
  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

// `value` as a whole number in [low, high]; `name` for messages.
int64_t read_integer(const Json& value, const std::string& name, int64_t low, int64_t high);

}  // namespace coppice
