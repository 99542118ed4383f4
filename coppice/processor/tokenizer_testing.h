// Tiny vocabularies for tests, and their brute-force reference.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/processor/tokenizer.h"

namespace coppice::testing {

// The character of GPT-2's alphabet for a byte.
std::string byte_character(uint8_t byte);
// A text in that alphabet.
std::string in_byte_alphabet(std::string_view text);

// A byte-level vocabulary: 256 bytes (ids 0 to 255), then the results of `merges` ("left right", in
// plain bytes), then control tokens, then added words.
struct TinyBpe {
  std::string pre = "gpt-2";
  std::vector<std::string> merges = {};
  std::vector<std::string> control = {"<|im_start|>", "<|im_end|>", "<bos>"};
  std::vector<std::string> added = {"<think>"};
  bool add_bos = false;

  GgufTokenizerFields gguf() const;
  Json json() const;  // with the pre-tokenizer of `pre`
};

// A SentencePiece-type vocabulary: <unk> <s> </s>, 256 bytes, then `pieces` (with U+2581 for
// blanks), each scored lower than the one before.
GgufTokenizerFields tiny_sentencepiece(const std::vector<std::string>& pieces);
Json tiny_sentencepiece_json(const std::vector<std::string>& pieces);

// Ids of one text through a StreamDecoder, joined.
std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                     const DecodeOptions& options = {});

// `text`, `count` times.
std::string repeat(std::string_view text, size_t count);

// One character of a nasty mix: all classes, all lengths, blanks and apostrophes often.
std::string nasty_character(uint64_t random);

}  // namespace coppice::testing
