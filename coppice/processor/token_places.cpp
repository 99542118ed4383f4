#include "coppice/processor/token_places.h"

#include <algorithm>

namespace coppice {
namespace {

// Where each token's bytes end in the text. Nothing where tokens spell the text otherwise; a blank
// that the vocabulary puts before a word counts for none.
std::optional<std::vector<int64_t>> token_ends(const Tokenizer& tokenizer, std::string_view text,
                                               std::span<const int32_t> ids) {
  std::vector<int64_t> ends;
  std::size_t at = 0;
  for (const int32_t id : ids) {
    std::string_view bytes = tokenizer.token_bytes(id);
    const std::string_view rest = text.substr(at);
    if (bytes.starts_with(' ') && !rest.starts_with(' ')) bytes.remove_prefix(1);
    if (!rest.starts_with(bytes)) return std::nullopt;
    at += bytes.size();
    ends.push_back(static_cast<int64_t>(at));
  }
  if (at != text.size()) return std::nullopt;
  return ends;
}

std::vector<TokenRange> places_by_ends(std::span<const int64_t> ends,
                                       std::span<const TextRange> ranges) {
  std::vector<TokenRange> places;
  for (const TextRange& range : ranges) {
    const auto first = std::upper_bound(ends.begin(), ends.end(), range.begin);
    auto last = std::lower_bound(first, ends.end(), range.end);
    if (last != ends.end() && range.end > range.begin) ++last;
    places.push_back({first - ends.begin(), last - ends.begin()});
  }
  return places;
}

// The parts of the ranges in [begin, end), counted from `begin`. `next`: the first that may have
// one, for calls with rising bounds.
std::vector<TextRange> clipped(std::span<const TextRange> ranges, int64_t begin, int64_t end,
                               std::size_t& next) {
  while (next < ranges.size() && ranges[next].end <= begin) ++next;
  std::vector<TextRange> inside;
  for (std::size_t i = next; i < ranges.size() && ranges[i].begin < end; ++i)
    inside.push_back(
        {std::max(ranges[i].begin, begin) - begin, std::min(ranges[i].end, end) - begin});
  return inside;
}

// Cuts the text at the ends of all ranges: where the pieces' tokens are those of the whole text, no
// token stands across a cut.
std::optional<std::vector<TokenRange>> places_by_pieces(const Tokenizer& tokenizer,
                                                        std::string_view text,
                                                        std::span<const TextRange> plain,
                                                        std::span<const int32_t> ids,
                                                        std::span<const TextRange> ranges) {
  std::vector<TokenRange> places;
  std::vector<int32_t> joined;
  std::size_t next = 0;
  int64_t at = 0;
  const auto add_until = [&](int64_t end) {
    const std::vector<TextRange> inside = clipped(plain, at, end, next);
    const std::vector<int32_t> piece = tokenizer.encode(
        text.substr(static_cast<std::size_t>(at), static_cast<std::size_t>(end - at)), {}, inside);
    joined.insert(joined.end(), piece.begin(), piece.end());
    at = end;
    return static_cast<int64_t>(joined.size());
  };
  for (const TextRange& range : ranges) {
    const int64_t begin = add_until(range.begin);
    places.push_back({begin, add_until(range.end)});
  }
  add_until(static_cast<int64_t>(text.size()));
  if (!std::equal(joined.begin(), joined.end(), ids.begin(), ids.end())) return std::nullopt;
  return places;
}

}  // namespace

std::optional<std::vector<TokenRange>> token_places(const Tokenizer& tokenizer,
                                                    std::string_view text,
                                                    std::span<const TextRange> plain,
                                                    std::span<const int32_t> ids,
                                                    std::span<const TextRange> ranges) {
  if (const auto ends = token_ends(tokenizer, text, ids)) return places_by_ends(*ends, ranges);
  return places_by_pieces(tokenizer, text, plain, ids, ranges);
}

}  // namespace coppice
