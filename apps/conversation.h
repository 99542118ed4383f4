// Turns of a chat over one engine session: each turn reads only what is new.
//
// The prompt of a turn is the rendered template. Where it continues what the session has read and
// written, only the rest is read; where the template rewrites the past (a thinking part removed,
// say), the session is dropped and the whole chat is read again. TokenUsage::reused tells which.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/runtime.h"

namespace coppice {

class Conversation final {
 public:
  // `runtime` must outlive it. `text_tokens`: what a budget that is a share counts from.
  Conversation(const Runtime& runtime, const GenerationOptions& options, int64_t text_tokens);
  // In an engine of the runtime's model that the caller has made.
  Conversation(const Runtime& runtime, const GenerationOptions& options,
               std::shared_ptr<Engine> engine);

  // One user turn. `on_text` sees the answer as it comes. Throws as Engine::submit; the chat is
  // then as before.
  // `images`: picture files, which stand before the text. Throws kInvalidArgument for pictures that
  // the model or its template has no place for.
  RequestOutput ask(const std::string& user, const std::function<void(std::string_view)>& on_text,
                    const std::vector<std::string>& images = {});

  // The two halves of ask(), for callers that step the engine themselves. begin() makes the turn's
  // request, whose answer goes to end(); a turn that is never ended leaves the chat as it was, but
  // for a session that the template's changes had to drop.
  struct Turn {
    Request request;
    std::string prompt;  // rendered
    OrderedJson messages;
    std::vector<ImageEncoder::Encoded> images;
  };
  Turn begin(const std::string& user, const std::vector<std::string>& images = {});
  // `answer`: all text and tokens of the answer. Without a session in it, the next turn reads the
  // whole chat again.
  void end(Turn turn, const RequestOutput& answer);
  // The session is gone or has what the chat does not know: the next turn reads the whole chat
  // again.
  void reread() { session_.reset(); }

  const OrderedJson& messages() const { return messages_; }

 private:
  std::vector<int32_t> next_tokens(const RenderedPrompt& prompt);
  EvictionConfig with_system_pinned(const RenderedPrompt& prompt,
                                    std::span<const int32_t> ids) const;
  std::vector<ImageEncoder::Encoded> encode(const std::vector<std::string>& images) const;

  const Runtime& runtime_;
  GenerationOptions options_;
  std::shared_ptr<Engine> engine_;
  OrderedJson messages_ = OrderedJson::array();
  std::vector<ImageEncoder::Encoded> images_;  // of all turns
  std::optional<SessionId> session_;
  std::string read_text_;  // rendered prompt and answers, as far as the session has them
};

}  // namespace coppice
