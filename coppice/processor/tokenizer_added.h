// Tokens that are matched in the text before any splitting: control tokens and added words.
//
// Matching is leftmost, then longest, as in the reference tokenizers. A match that touches a plain
// range (text that came from a user) never counts: there everything is ordinary text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/processor/text_range.h"

namespace coppice {

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = false;      // a control token, rather than an added word
  bool single_word = false;  // only where no regex \w touches it
  bool lstrip = false;       // takes the blanks before it
  bool rstrip = false;       // takes the blanks after it
  bool normalized = false;   // matched after normalisation, with normalised content
};

class AddedTokens final {
 public:
  // Matches `pattern`, the content or its normalised form. An empty pattern is ignored; of equal
  // patterns the first added stays.
  void add(const AddedToken& token, std::string_view pattern);
  bool empty() const { return tokens_.empty(); }

  struct Piece {
    size_t begin;
    size_t end;
    int32_t id;  // -1: ordinary text
  };
  // Appends the pieces of `text`, in order and without gaps; text pieces are never empty.
  // Without `match_special` the control tokens are ordinary text everywhere.
  void split(std::string_view text, std::span<const TextRange> plain, bool match_special,
             std::vector<Piece>& pieces) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, uint32_t>> children;  // sorted by byte
    int32_t token = -1;                                  // index into tokens_
  };
  const Node* child(const Node& node, char byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  bool first_byte_[256] = {};
};

}  // namespace coppice
