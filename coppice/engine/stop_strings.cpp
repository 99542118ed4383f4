#include "coppice/engine/stop_strings.h"

#include <algorithm>

#include "coppice/core/error.h"

namespace coppice {
namespace {

// border[i]: length of the longest proper prefix of pattern[0..i] that is also its suffix.
std::vector<int32_t> borders(const std::string& pattern) {
  std::vector<int32_t> border(pattern.size(), 0);
  int32_t length = 0;
  for (std::size_t i = 1; i < pattern.size(); ++i) {
    while (length > 0 && pattern[i] != pattern[static_cast<std::size_t>(length)]) {
      length = border[static_cast<std::size_t>(length) - 1];
    }
    if (pattern[i] == pattern[static_cast<std::size_t>(length)]) ++length;
    border[i] = length;
  }
  return border;
}

}  // namespace

StopStrings::StopStrings(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) fail_argument("a stop string must not be empty");
    automata_.push_back({stop, borders(stop), 0});
  }
}

std::string StopStrings::push(std::string_view piece) {
  if (stopped_) return {};
  if (automata_.empty() || piece.empty()) return std::string(piece);
  std::string text = std::move(held_);
  std::size_t at = text.size();
  text += piece;
  for (; at < text.size() && !stopped_; ++at) advance(text[at]);
  // `at` is one past the last byte read; the bytes before it that a stop has begun with stay here.
  const std::size_t cut = at - (stopped_ ? longest_complete() : longest_started());
  held_ = stopped_ ? std::string() : text.substr(cut);
  text.resize(cut);
  return text;
}

void StopStrings::advance(char byte) {
  for (Automaton& a : automata_) {
    auto matched = static_cast<std::size_t>(a.matched);
    while (matched > 0 && a.pattern[matched] != byte) {
      matched = static_cast<std::size_t>(a.fallback[matched - 1]);
    }
    if (a.pattern[matched] == byte) ++matched;
    a.matched = static_cast<int32_t>(matched);
    if (matched == a.pattern.size()) stopped_ = true;
  }
}

std::size_t StopStrings::longest_started() const {
  int32_t longest = 0;
  for (const Automaton& a : automata_) longest = std::max(longest, a.matched);
  return static_cast<std::size_t>(longest);
}

std::size_t StopStrings::longest_complete() const {
  std::size_t longest = 0;
  for (const Automaton& a : automata_) {
    const auto matched = static_cast<std::size_t>(a.matched);
    if (matched == a.pattern.size()) longest = std::max(longest, matched);
  }
  return longest;
}

std::string StopStrings::finish() {
  if (stopped_) return {};
  std::string text = std::move(held_);
  held_.clear();
  for (Automaton& a : automata_) a.matched = 0;
  return text;
}

}  // namespace coppice
