#include "apps/conversation.h"

#include <algorithm>

#include "apps/usage.h"
#include "coppice/core/error.h"
#include "coppice/processor/token_places.h"

namespace coppice {

Conversation::Conversation(const Runtime& runtime, const GenerationOptions& options,
                           int64_t text_tokens)
    : Conversation(runtime, options,
                   runtime.make_engine(text_tokens, runtime.longest_tokens(0, std::nullopt))) {}

Conversation::Conversation(const Runtime& runtime, const GenerationOptions& options,
                           std::shared_ptr<Engine> engine)
    : runtime_(runtime), options_(options), engine_(std::move(engine)) {
  if (options.keep_system && options.system.empty())
    fail_argument("--keep-system: expected a system message, got an empty one");
  if (!options.system.empty())
    messages_.push_back({{"role", "system"}, {"content", options.system}});
}

// What the engine must still read of `prompt`.
std::vector<int32_t> Conversation::next_tokens(const RenderedPrompt& prompt) {
  std::string_view rest = prompt.text;
  int64_t offset = 0;
  if (session_ && rest.starts_with(read_text_)) {
    offset = static_cast<int64_t>(read_text_.size());
    rest.remove_prefix(read_text_.size());
  } else if (session_) {
    engine_->drop_session(*session_);
    session_.reset();
  }
  std::vector<TextRange> plain;
  for (const TextRange& range : prompt.plain) {
    if (range.end > offset)
      plain.push_back({std::max<int64_t>(0, range.begin - offset), range.end - offset});
  }
  return runtime_.tokenizer().encode(rest, {.parse_special = true}, plain);
}

// `ids`: of the whole prompt. Pictures stand behind the system message.
EvictionConfig Conversation::with_system_pinned(const RenderedPrompt& prompt,
                                                std::span<const int32_t> ids) const {
  EvictionConfig eviction = engine_->config().eviction;
  std::optional<std::vector<TokenRange>> places;
  if (prompt.messages.front()) {
    const std::vector<TextRange> range = {*prompt.messages.front()};
    places = token_places(runtime_.tokenizer(), prompt.text, prompt.plain, ids, range);
  }
  if (!places)
    fail_argument("--keep-system: the chat template of {} does not show where the message stands",
                  runtime_.path());
  eviction.pins.push_back(
      {static_cast<int32_t>(places->front().begin), static_cast<int32_t>(places->front().end)});
  return eviction;
}

std::vector<ImageEncoder::Encoded> Conversation::encode(
    const std::vector<std::string>& images) const {
  std::vector<ImageEncoder::Encoded> encoded;
  if (images.empty()) return encoded;
  if (!runtime_.chat_template().reads_content_parts())
    fail_argument("the chat template of {} has no place for pictures", runtime_.path());
  for (const std::string& image : images) encoded.push_back(runtime_.encode_image(image));
  return encoded;
}

Conversation::Turn Conversation::begin(const std::string& user,
                                       const std::vector<std::string>& images) {
  Turn turn;
  OrderedJson& messages = turn.messages;
  messages = messages_;
  const std::vector<ImageEncoder::Encoded> fresh = encode(images);
  std::vector<ImageEncoder::Encoded>& pictures = turn.images;
  pictures = images_;
  pictures.insert(pictures.end(), fresh.begin(), fresh.end());
  messages.push_back({{"role", "user"}, {"content", user}});
  if (!images.empty()) {
    OrderedJson parts = OrderedJson::array();
    for (std::size_t i = 0; i < images.size(); ++i) parts.push_back({{"type", "image"}});
    parts.push_back({{"type", "text"}, {"text", user}});
    messages.back()["content"] = std::move(parts);
  }
  ChatRequest chat;
  chat.messages = messages;
  chat.add_generation_prompt = true;
  if (options_.think_given) chat.enable_thinking = options_.think;
  RenderedPrompt prompt = runtime_.chat_template().render(chat);

  Request& request = turn.request;
  const std::vector<int32_t> ids = next_tokens(prompt);
  runtime_.set_prompt(
      request, ids, session_ ? fresh : pictures,
      session_ ? static_cast<int64_t>(engine_->session_tokens(*session_).size()) : 0);
  request.sampling = options_.sampling;
  request.sampling.seed = options_.seed;
  request.sampling.max_tokens = options_.max_tokens;
  request.session = session_;
  request.keep_session = true;
  if (options_.keep_system && !session_) request.eviction = with_system_pinned(prompt, ids);
  turn.prompt = std::move(prompt.text);
  return turn;
}

void Conversation::end(Turn turn, const RequestOutput& output) {
  session_ = output.session;
  read_text_ = turn.prompt + output.text;
  // An end token that was drawn is part of what the session has.
  if (output.finish_reason == FinishReason::kStop && !output.tokens.empty()) {
    const int32_t last = output.tokens.back().id;
    if (runtime_.tokenizer().is_special(last)) read_text_ += runtime_.tokenizer().token_text(last);
  }
  turn.messages.push_back({{"role", "assistant"}, {"content", output.text}});
  messages_ = std::move(turn.messages);
  images_ = std::move(turn.images);
}

RequestOutput Conversation::ask(const std::string& user,
                                const std::function<void(std::string_view)>& on_text,
                                const std::vector<std::string>& images) {
  Turn turn = begin(user, images);
  RequestOutput output = from_flags([&] {
    return engine_->run(turn.request, [&on_text](const RequestOutput& part) {
      if (on_text) on_text(part.text);
      return true;
    });
  });
  end(std::move(turn), output);
  return output;
}

}  // namespace coppice
