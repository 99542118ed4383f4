// Settings of one policy by name ("window=32"), as the user gives them: each scorer reads its own,
// what no one reads is refused with the list of what is known, and what is in force is reported.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

using OptionMap = std::map<std::string, std::string>;

class ScorerOptions final {
 public:
  explicit ScorerOptions(std::string policy, OptionMap given)
      : policy_(std::move(policy)), given_(std::move(given)) {}

  // Each throws kInvalidArgument: the option, what is expected, what was given.
  int64_t integer(const std::string& name, int64_t fallback, int64_t least, int64_t most);
  double number(const std::string& name, double fallback, double least, double most);
  // "none", which stands where nothing is given, is no number.
  std::optional<float> number_or_none(const std::string& name, double least, double most);
  std::string word(const std::string& name, const std::string& fallback,
                   const std::vector<std::string>& allowed);

  // -> every option that was read, with its value. Throws kInvalidArgument for one that was given
  // and not read.
  OptionMap finish() const;

 private:
  std::string take(const std::string& name, std::string fallback);

  std::string policy_;
  OptionMap given_;
  OptionMap in_force_;
};

// "window=16" to its two sides. Throws kInvalidArgument where there are none.
std::pair<std::string, std::string> parse_option(std::string_view text);

}  // namespace coppice
