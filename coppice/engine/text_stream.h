// The text of one sequence, token by token: what the engine needs of a tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace coppice {

class Tokenizer;

class TextStream {
 public:
  virtual ~TextStream() = default;
  // The text that `id` completes: whole characters; the bytes of an unfinished one are held back.
  virtual std::string push(int32_t id) = 0;
  // What was held back, invalid bytes replaced by U+FFFD.
  virtual std::string finish() = 0;
};

using TextStreamFactory = std::function<std::unique_ptr<TextStream>()>;

// Streams over `tokenizer`, which must outlive them. Control tokens give no text.
// strip_leading_space: the blank that a SentencePiece-type vocabulary puts before a text is taken
// off, as a chat answer wants; off, the text continues the prompt.
TextStreamFactory text_streams(const Tokenizer& tokenizer, bool strip_leading_space = true);

}  // namespace coppice
