#include "coppice/engine/kv_budget.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/eviction/policy.h"

namespace coppice {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 7> kByteUnits = {{
    {"KiB", 0x1p10},
    {"MiB", 0x1p20},
    {"GiB", 0x1p30},
    {"kB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"B", 1.0},
}};

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  fail_argument(
      "KV budget \"{}\": {}; expected entries per head (512), bytes (64MiB), a share of the text "
      "(12.5%) or full",
      text, why);
}

}  // namespace

KvBudget KvBudget::parse(std::string_view text) {
  KvBudget result;
  if (text == "full") return result;

  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) refuse(text, "not a number");
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (!(number > 0)) refuse(text, "must be above 0");

  if (unit.empty()) {
    if (number != std::floor(number) || number > 0x1p40) refuse(text, "not a whole number");
    result.unit = Unit::kEntries;
    result.entries = static_cast<int64_t>(number);
    return result;
  }
  if (unit == "%") {
    if (number > 100) refuse(text, "above 100 %");
    result.unit = Unit::kShare;
    result.share = number / 100;
    return result;
  }
  for (const auto& [name, factor] : kByteUnits) {
    if (unit != name) continue;
    const double bytes = number * factor;
    if (bytes < 1 || bytes > 0x1p62) refuse(text, "out of range");
    result.unit = Unit::kBytes;
    result.bytes = static_cast<int64_t>(bytes);
    return result;
  }
  refuse(text, fmt::format("unknown unit \"{}\"", unit));
}

std::string KvBudget::to_string() const {
  switch (unit) {
    case Unit::kFull:
      return "full";
    case Unit::kEntries:
      return fmt::format("{}", entries);
    case Unit::kBytes:
      return fmt::format("{}B", bytes);
    case Unit::kShare:
      return fmt::format("{:g}%", share * 100);
  }
  return {};
}

int64_t KvBudget::entries_for(int64_t tokens) const {
  COPPICE_CHECK(unit != Unit::kBytes, "a byte budget is resolved by the memory plan");
  switch (unit) {
    case Unit::kEntries:
      return entries;
    case Unit::kShare:
      return std::max<int64_t>(
          1, static_cast<int64_t>(std::ceil(share * static_cast<double>(tokens))));
    default:
      return EvictionConfig::kUnbounded;
  }
}

}  // namespace coppice
