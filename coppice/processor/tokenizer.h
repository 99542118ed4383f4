// Text to token ids and back: byte-level BPE and SentencePiece-type BPE vocabularies.
//
// Ids equal those of the Hugging Face reference tokenizers, except on purpose in four places:
//  - text that came from a user (`plain` ranges) never becomes an added or control token;
//  - decoding replaces ill-formed UTF-8 by one U+FFFD per maximal ill-formed part, also in runs of
//    byte tokens, where the reference spoils the whole run: so streams can be decoded as they come;
//  - decoding gives added tokens as they are written, where the reference reads those that hold
//    Latin-1 letters as bytes;
//  - decoding never removes blanks before punctuation ("clean_up_tokenization_spaces").
// Composition (NFC) follows Unicode 15, the reference an older version: 54 combining marks that it
// does not know yet may be put in another order. Input that is not UTF-8 is read as if each
// ill-formed part were U+FFFD. Encoding takes time linear (merging: n log n) in the length of the
// text, whatever it holds. A Tokenizer is immutable and thread-safe. It is movable; decoders refer
// to its inner part and stay valid when it is moved, but not when it is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/processor/text_range.h"
#include "coppice/processor/unicode.h"

namespace coppice {

struct TokenizerModel;

// The tokenizer.ggml.* fields of a GGUF file, as its reader finds them.
struct GgufTokenizerFields {
  std::string model;                // "gpt2" (byte-level BPE) or "llama" (SentencePiece-type)
  std::string pre;                  // name of the pre-tokenizer; empty when the key is missing
  std::vector<std::string> tokens;  // by id
  std::vector<float> scores;        // by id; needed for "llama"
  std::vector<int32_t> types;  // by id: 1 normal, 2 unknown, 3 control, 4 user, 5 unused, 6 byte
  std::vector<std::string> merges;  // "left right", by rank; needed for "gpt2"
  std::optional<int64_t> bos_id, eos_id, eot_id, eom_id, unk_id, pad_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix;  // missing: the family's default
};

struct EncodeOptions {
  // Whether control tokens are recognised in text outside the plain ranges. Added words that are no
  // control tokens are recognised there in any case, as in the reference.
  bool parse_special = true;
  // Whether to add what the vocabulary wants around a text: a begin token, an end token. A text
  // that already starts with the begin token gets no second one. Leave it off for a rendered chat
  // template, which writes its own.
  bool add_special = false;
};

struct DecodeOptions {
  bool skip_special = false;  // control tokens give no text
  // Whether the blank that a SentencePiece-type vocabulary puts before a text is taken off again.
  // Turn it off to continue a text rather than start one.
  bool strip_leading_space = true;
};

class Tokenizer final {
 public:
  // `config_json` is the text of tokenizer_config.json, or empty.
  // Throws kInvalidArgument on malformed files and on parts that are not supported, by name.
  static Tokenizer from_tokenizer_json(std::string_view json, std::string_view config_json = {});
  static Tokenizer from_gguf(const GgufTokenizerFields& fields);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // `plain` lists the byte ranges of `text` that came from a user: sorted, not overlapping.
  // Throws kInvalidArgument for ranges outside the text.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {},
                              std::span<const TextRange> plain = {}) const;
  // Always valid UTF-8. Ids outside the vocabulary (a padded output layer has some) give no text.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  int64_t vocab_size() const;  // one more than the largest id
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> unk_id() const;
  std::optional<int32_t> pad_id() const;
  // Every token that ends a turn or a text: eos, end of turn, end of message. Sorted.
  const std::vector<int32_t>& end_ids() const;
  bool adds_bos() const;  // with EncodeOptions::add_special

  bool is_special(int32_t id) const;  // a control token
  // The token as the vocabulary file spells it. Throws kInvalidArgument outside the vocabulary.
  const std::string& token_text(int32_t id) const;
  // The bytes it stands for in a text; not always valid UTF-8 alone. Empty outside the vocabulary.
  std::string_view token_bytes(int32_t id) const;
  std::optional<int32_t> find_token(std::string_view text) const;  // by token_text

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::unique_ptr<const TokenizerModel> model);
  std::unique_ptr<const TokenizerModel> model_;
};

// Decodes ids as they are generated. The join of all results, flush() included, equals decode() of
// all ids; each result is valid UTF-8. Not thread-safe.
class StreamDecoder final {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options = {});
  // The text that is certain once `id` follows; an unfinished character is held back.
  std::string push(int32_t id);
  // The rest: U+FFFD for an unfinished character. The decoder is then as new.
  std::string flush();

 private:
  friend class Tokenizer;
  StreamDecoder(const TokenizerModel& model, const DecodeOptions& options);
  void push(int32_t id, std::string& out);

  const TokenizerModel* model_;
  DecodeOptions options_;
  bool at_start_ = true;
  Utf8Assembler assembler_;
};

}  // namespace coppice
