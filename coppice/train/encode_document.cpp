#include "coppice/train/encode_document.h"

#include <algorithm>
#include <string_view>

#include "coppice/core/error.h"

namespace coppice {
namespace {

// The part of `plain` inside [begin, end), counted from `begin`.
std::vector<TextRange> clip(const std::vector<TextRange>& plain, int64_t begin, int64_t end) {
  std::vector<TextRange> inside;
  for (const TextRange& range : plain) {
    const int64_t from = std::max(range.begin, begin);
    const int64_t to = std::min(range.end, end);
    if (from < to) inside.push_back({from - begin, to - begin});
  }
  return inside;
}

}  // namespace

EncodedDocument DocumentEncoder::encode(const Document& document, std::string_view where) const {
  if (document.media > 0)
    fail_argument("{}: document \"{}\" has {} images or videos, and the model reads text alone",
                  where, document.id, document.media);
  EncodedDocument encoded;
  if (!document.is_conversation()) {
    encoded = encode_text(document.text);
  } else if (chat_ == nullptr) {
    fail_argument("{}: a conversation, but the model brings no chat template", where);
  } else {
    try {
      encoded = encode_conversation(document.messages);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", where, error.what()));
    }
  }
  if (!encoded.learned.empty()) encoded.learned.front() = 0;
  return encoded;
}

EncodedDocument DocumentEncoder::encode_text(const std::string& text) const {
  EncodedDocument encoded;
  encoded.tokens = tokenizer_.encode(text, {.parse_special = false, .add_special = true});
  encoded.learned.assign(encoded.tokens.size(), 1);
  return encoded;
}

RenderedPrompt DocumentEncoder::render(const OrderedJson& messages, std::size_t count,
                                       bool prompt) const {
  ChatRequest request;
  request.messages = OrderedJson::array();
  for (std::size_t i = 0; i < count; ++i) request.messages.push_back(messages[i]);
  request.add_generation_prompt = prompt;
  return chat_->render(request);
}

EncodedDocument DocumentEncoder::encode_conversation(const OrderedJson& messages) const {
  const RenderedPrompt whole = render(messages, messages.size(), false);
  const std::string_view text = whole.text;
  std::vector<TextRange> turns;  // of assistants, in bytes of `text`
  int64_t last = 0;
  for (std::size_t i = 1; i < messages.size(); ++i) {
    if (messages[i]["role"] != "assistant") continue;
    const std::string before = render(messages, i, true).text;
    const std::string after =
        i + 1 == messages.size() ? whole.text : render(messages, i + 1, false).text;
    const auto begin = static_cast<int64_t>(before.size());
    const auto end = static_cast<int64_t>(after.size());
    const bool stable = text.starts_with(before) && text.starts_with(after) && begin < end;
    if (!stable || begin < last) continue;
    turns.push_back({begin, end});
    last = end;
  }

  EncodedDocument encoded;
  const auto append = [&](int64_t begin, int64_t end, bool learned) {
    const std::vector<TextRange> plain = clip(whole.plain, begin, end);
    const std::vector<int32_t> ids = tokenizer_.encode(
        text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)), {},
        plain);
    for (const int32_t id : ids) {
      encoded.tokens.push_back(id);
      encoded.learned.push_back(learned ? 1 : 0);
      // What the template writes after the end of a turn is never generated.
      if (learned && std::ranges::binary_search(tokenizer_.end_ids(), id)) learned = false;
    }
  };
  int64_t at = 0;
  for (const TextRange& turn : turns) {
    append(at, turn.begin, false);
    append(turn.begin, turn.end, true);
    at = turn.end;
  }
  append(at, static_cast<int64_t>(text.size()), false);
  return encoded;
}

}  // namespace coppice
