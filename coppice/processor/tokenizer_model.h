// The inside of a Tokenizer, common to both file formats. Internal to processor/: include
// tokenizer.h.
//
//   text -> added tokens -> normaliser -> normalised added tokens -> blanks (Metaspace)
//        -> words (PreTokenizer) -> first symbols -> merges -> ids
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "coppice/processor/bpe.h"
#include "coppice/processor/pre_tokenizer.h"
#include "coppice/processor/tokenizer.h"
#include "coppice/processor/tokenizer_added.h"
#include "coppice/processor/tokenizer_normalizer.h"

namespace coppice {

enum class TokenKind : uint8_t {
  kNormal,
  kControl,  // special: also the unknown token
  kAdded,    // an added word
  kByte,     // one byte, for characters that the vocabulary lacks
  kUnused,   // padding of the vocabulary, or a hole in the ids: no text
};

struct TokenEntry {
  std::string text;   // as the file spells it
  std::string bytes;  // what it stands for
  TokenKind kind = TokenKind::kUnused;
};

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using TokenMap = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

// SentencePiece's blank, U+2581.
inline constexpr std::string_view kBlankMark = "\xE2\x96\x81";

struct TokenizerModel {
  static constexpr size_t kMaxTokens = 1 << 20;

  std::vector<TokenEntry> tokens;  // by id
  TokenMap by_text;                // every token; the first of equal ones

  AddedTokens added;             // matched in the text as it is
  AddedTokens added_normalized;  // matched after `normalizer`
  TextNormalizer normalizer;
  PreTokenizer pre_tokenizer;

  enum class PrefixSpace {
    kNever,
    kIfMissing,           // a blank before each text between added tokens that has none (ByteLevel)
    kMarkIfMissing,       // the same with kBlankMark (Metaspace "always")
    kMarkFirstIfMissing,  // only at the start of everything (Metaspace "first")
  };
  PrefixSpace prefix_space = PrefixSpace::kNever;
  bool mark_blanks = false;  // Metaspace: blanks become kBlankMark
  bool split_marks = false;  // ... and start words

  // First symbols of a word: bytes of a byte-level vocabulary, else characters.
  bool byte_level = true;
  std::array<int32_t, 256> byte_ids;               // -1 where there is none
  std::unordered_map<uint32_t, int32_t> char_ids;  // by code point; not of a byte-level vocabulary
  bool byte_fallback = false;                      // unknown characters become byte tokens
  bool fuse_unknown = false;                       // a run of unknown characters is one token

  MergeTable merges;
  // Where merges can cross, of a vocabulary of characters: pairs of a merge's last character on the
  // left and first on the right. Words are cut at every other pair: no id changes, and time is
  // saved.
  std::unordered_set<uint64_t> junctions;
  bool cut_words = true;  // false when byte tokens merge, whose characters say nothing
  TokenMap whole_words;   // words that are never merged, by bytes ("ignore_merges"); else empty

  int32_t bos = -1, eos = -1, unk = -1, pad = -1;
  int32_t unknown_symbol = -1;  // for characters that nothing else covers; -1: they are left out
  std::vector<int32_t> ends;    // sorted
  std::vector<int32_t> prefix, suffix;  // what `add_special` puts around a text
  bool strip_leading_space = false;     // in decoding

  TokenizerModel() { byte_ids.fill(-1); }

  // Adds an entry of `tokens`, with its place in by_text. Throws past kMaxTokens and for an id that
  // is taken by another text.
  void add_token(int64_t id, TokenEntry entry);
  // Puts `token` where it is matched. REQUIRES: its entry exists and `normalizer` is complete.
  void add_added(const AddedToken& token);
  // Adds the merge of two tokens by their texts. Throws when one of the three is no token. A merge
  // that gives a control token is left out, so that no ordinary text becomes one.
  void add_merge(std::string_view left, std::string_view right, uint32_t rank);
  // The same by ids.
  void add_merge(int32_t left, int32_t right, MergeTable::Merge merge);
  static uint64_t junction(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }
  // Fills byte_ids or char_ids from the normal and byte tokens, and `ends` from names and `eos`.
  void finish();

  bool has(int64_t id) const { return id >= 0 && id < static_cast<int64_t>(tokens.size()); }
  bool is_special(int32_t id) const { return has(id) && tokens[id].kind == TokenKind::kControl; }
};

// The bytes that the text of a byte-level token spells, in the alphabet that GPT-2 made of
// printable characters; the text itself when it holds a character outside that alphabet.
std::string bytes_of_byte_level(std::string_view text);

}  // namespace coppice
