// From a document to the tokens of training: which it has, and which carry loss.
//
// A plain document is tokenised as text alone, and every token that has a predecessor is learned. A
// conversation is rendered with the model's chat template; the tokens of assistant turns are
// learned, the end of the turn included. Where a turn stands is found by rendering the conversation
// up to it, never by looking for token ids, so nothing that a user typed can pass for a turn.
//
// Each turn is tokenised apart from what is around it, as in serving, where the prompt is tokenised
// and the answer generated. A template that writes earlier turns differently once others follow
// (some drop the thoughts of earlier answers) leaves those without loss.
#pragma once

#include <cstdint>
#include <vector>

#include "coppice/processor/tokenizer.h"
#include "coppice/train/document.h"

namespace coppice {

struct EncodedDocument {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learned;  // 1: predicting this token carries loss; never the first token
};

class DocumentEncoder final {
 public:
  // Both must outlive the encoder. `chat` may be null: conversations are refused then.
  DocumentEncoder(const Tokenizer& tokenizer, const ChatTemplate* chat)
      : tokenizer_(tokenizer), chat_(chat) {}

  // `where` names the document in messages. Throws kInvalidArgument for a document with images or
  // videos, for a conversation without a template, and as ChatTemplate::render.
  EncodedDocument encode(const Document& document, std::string_view where) const;

 private:
  EncodedDocument encode_text(const std::string& text) const;
  EncodedDocument encode_conversation(const OrderedJson& messages) const;
  RenderedPrompt render(const OrderedJson& messages, std::size_t count, bool prompt) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;
};

}  // namespace coppice
