#include "coppice/processor/message_places.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace coppice {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

// Whether the content of the message is part of the first `end` bytes, as user data.
bool is_written_before(const jinja::Text& text, int64_t end,
                       const nlohmann::ordered_json& message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return false;
  const std::string_view wanted = trimmed(content->get_ref<const std::string&>());
  if (wanted.empty()) return false;
  const std::string_view before =
      std::string_view(text.bytes).substr(0, static_cast<std::size_t>(end));
  for (const TextRange& range : text.plain) {
    if (range.begin >= end) break;
    const auto size = static_cast<std::size_t>(std::min(range.end, end) - range.begin);
    const auto begin = static_cast<std::size_t>(range.begin);
    if (before.substr(begin, size).find(wanted) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

std::vector<std::optional<TextRange>> message_places(
    const jinja::Text& text, const std::vector<jinja::Runtime::Written>& written,
    const nlohmann::ordered_json& messages) {
  std::vector<std::optional<TextRange>> places(messages.size());
  std::vector<int> rounds(messages.size(), 0);
  for (const auto& [index, range] : written) {
    const std::string_view bytes = std::string_view(text.bytes)
                                       .substr(static_cast<std::size_t>(range.begin),
                                               static_cast<std::size_t>(range.end - range.begin));
    if (trimmed(bytes).empty()) continue;
    places[index] = range;
    ++rounds[index];
  }
  for (std::size_t i = 0; i < places.size(); ++i)
    if (rounds[i] > 1) places[i].reset();
  if (places.size() > 1 && rounds[0] == 0 && places[1] &&
      is_written_before(text, places[1]->begin, messages[0]))
    places[0] = TextRange{0, places[1]->begin};
  return places;
}

}  // namespace coppice
