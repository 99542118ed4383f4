#include "coppice/core/json.h"

#include <set>
#include <vector>

#include "coppice/core/error.h"

namespace coppice {
namespace {

// Walks the text without building it: depth, duplicate keys and syntax.
class Checker final : public nlohmann::json_sax<Json> {
 public:
  Checker(const JsonLimits& limits, std::string_view what) : limits_(limits), what_(what) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    if (limits_.reject_duplicate_keys) keys_.emplace_back();
    return enter();
  }
  bool end_object() override {
    if (limits_.reject_duplicate_keys) keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (limits_.reject_duplicate_keys && !keys_.back().insert(name).second) {
      fail_argument("{}: the key \"{}\" stands twice in one object", what_, name);
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    fail_argument("{}: not valid JSON at byte {}", what_, position);
  }

 private:
  bool enter() {
    if (++depth_ > limits_.max_depth) {
      fail_argument("{}: JSON nested deeper than {} levels", what_, limits_.max_depth);
    }
    return true;
  }

  const JsonLimits& limits_;
  std::string_view what_;
  int64_t depth_ = 0;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  Checker checker(limits, what);
  Json::sax_parse(text, &checker);
  return Json::parse(text);
}

std::string dump_json(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace coppice
