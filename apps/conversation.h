// Turns of a chat over one engine session: each turn reads only what is new.
//
// The prompt of a turn is the rendered template. Where it continues what the session has read and
// written, only the rest is read; where the template rewrites the past (a thinking part removed,
// say), the session is dropped and the whole chat is read again. TokenUsage::reused tells which.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/runtime.h"

namespace coppice {

class Conversation final {
 public:
  // `runtime` must outlive it. `text_tokens`: what a budget that is a share counts from.
  Conversation(const Runtime& runtime, const GenerationOptions& options, int64_t text_tokens);

  // One user turn. `on_text` sees the answer as it comes. Throws as Engine::submit; the chat is
  // then as before.
  // `images`: picture files, which stand before the text. Throws kInvalidArgument for pictures that
  // the model or its template has no place for.
  RequestOutput ask(const std::string& user, const std::function<void(std::string_view)>& on_text,
                    const std::vector<std::string>& images = {});

  const OrderedJson& messages() const { return messages_; }

 private:
  std::vector<int32_t> next_tokens(const RenderedPrompt& prompt);
  std::vector<ImageEncoder::Encoded> encode(const std::vector<std::string>& images) const;

  const Runtime& runtime_;
  GenerationOptions options_;
  std::unique_ptr<Engine> engine_;
  OrderedJson messages_ = OrderedJson::array();
  std::vector<ImageEncoder::Encoded> images_;  // of all turns
  std::optional<SessionId> session_;
  std::string read_text_;  // rendered prompt and answers, as far as the session has them
};

}  // namespace coppice
