#include "coppice/eviction/scorer_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "coppice/core/error.h"

namespace coppice {
namespace {

// The whole text as a number, or false.
template <typename Number>
bool read_number(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && last == end;
}

}  // namespace

std::string ScorerOptions::take(const std::string& name, std::string fallback) {
  const auto found = given_.find(name);
  return in_force_[name] = found == given_.end() ? std::move(fallback) : found->second;
}

int64_t ScorerOptions::integer(const std::string& name, int64_t fallback, int64_t least,
                               int64_t most) {
  const std::string text = take(name, std::to_string(fallback));
  int64_t value = 0;
  if (!read_number(text, value) || value < least || value > most)
    fail_argument("policy {}: {} must be a whole number from {} to {}, got \"{}\"", policy_, name,
                  least, most, text);
  return value;
}

double ScorerOptions::number(const std::string& name, double fallback, double least, double most) {
  const std::string text = take(name, fmt::format("{}", fallback));
  double value = 0.0;
  if (!read_number(text, value) || !(value >= least && value <= most))
    fail_argument("policy {}: {} must be a number from {} to {}, got \"{}\"", policy_, name, least,
                  most, text);
  return value;
}

std::optional<float> ScorerOptions::number_or_none(const std::string& name, double least,
                                                   double most) {
  if (take(name, "none") == "none") return std::nullopt;
  return static_cast<float>(number(name, 0.0, least, most));
}

std::string ScorerOptions::word(const std::string& name, const std::string& fallback,
                                const std::vector<std::string>& allowed) {
  const std::string text = take(name, fallback);
  if (std::find(allowed.begin(), allowed.end(), text) == allowed.end())
    fail_argument("policy {}: {} must be one of {}, got \"{}\"", policy_, name,
                  fmt::join(allowed, ", "), text);
  return text;
}

OptionMap ScorerOptions::finish() const {
  for (const auto& [name, value] : given_) {
    if (in_force_.contains(name)) continue;
    std::vector<std::string> known;
    for (const auto& [other, ignored] : in_force_) known.push_back(other);
    fail_argument("policy {} has no option \"{}\"; it knows {}", policy_, name,
                  known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
  }
  return in_force_;
}

std::pair<std::string, std::string> parse_option(std::string_view text) {
  const std::size_t middle = text.find('=');
  if (middle == 0 || middle == std::string_view::npos || middle + 1 == text.size())
    fail_argument("policy option \"{}\": expected name=value, such as window=32", text);
  return {std::string(text.substr(0, middle)), std::string(text.substr(middle + 1))};
}

}  // namespace coppice
