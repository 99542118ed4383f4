// Where parts of a text stand among its tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "coppice/processor/text_range.h"
#include "coppice/processor/tokenizer.h"

namespace coppice {

// The tokens [begin, end) of a text.
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const TokenRange&) const = default;
};

// The tokens that hold a byte of each of `ranges`, where `ids` is what `tokenizer` made of `text`
// with `plain`, control tokens read and none added. Nothing where the vocabulary does not show it:
// tokens of another spelling than the text (composed characters) on both sides of an end of a range
// that no token ends at. Takes time linear in the text, however many ranges there are. REQUIRES:
// ranges in order, not overlapping, inside the text.
std::optional<std::vector<TokenRange>> token_places(const Tokenizer& tokenizer,
                                                    std::string_view text,
                                                    std::span<const TextRange> plain,
                                                    std::span<const int32_t> ids,
                                                    std::span<const TextRange> ranges);

}  // namespace coppice
