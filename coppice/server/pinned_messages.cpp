#include "coppice/server/pinned_messages.h"

#include <algorithm>
#include <utility>

#include "coppice/processor/token_places.h"
#include "coppice/server/api_error.h"

namespace coppice {
namespace {

std::vector<TextRange> places_of(const RenderedPrompt& prompt, std::span<const int64_t> numbers,
                                 const char* field) {
  std::vector<TextRange> ranges;
  const auto count = static_cast<int64_t>(prompt.messages.size());
  for (const int64_t index : numbers) {
    if (index >= count) {
      refuse_field(field, "expected numbers of messages, 0 to {}, got {}", count - 1, index);
    }
    const auto& place = prompt.messages[static_cast<std::size_t>(index)];
    if (!place) {
      refuse_field(field, "this model's chat template does not show where message {} stands",
                   index);
    }
    ranges.push_back(*place);
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const TextRange& a, const TextRange& b) { return a.begin < b.begin; });
  return ranges;
}

std::optional<std::vector<PositionSpan>> spans_of(const Tokenizer& tokenizer,
                                                  const RenderedPrompt& prompt,
                                                  std::span<const int32_t> ids,
                                                  std::span<const TextRange> ranges) {
  const auto places = token_places(tokenizer, prompt.text, prompt.plain, ids, ranges);
  if (!places) return std::nullopt;
  std::vector<PositionSpan> spans;
  for (const TokenRange& place : *places)
    spans.push_back({static_cast<int32_t>(place.begin), static_cast<int32_t>(place.end)});
  return spans;
}

}  // namespace

std::vector<PositionSpan> message_spans(const Tokenizer& tokenizer, const RenderedPrompt& prompt,
                                        std::span<const int32_t> ids,
                                        std::span<const int64_t> numbers, const char* field) {
  if (numbers.empty()) return {};
  auto spans = spans_of(tokenizer, prompt, ids, places_of(prompt, numbers, field));
  if (!spans) {
    refuse_field(field, "this model's tokens do not show where a message begins or ends here");
  }
  return std::move(*spans);
}

std::optional<PositionSpan> find_message(const Tokenizer& tokenizer, const RenderedPrompt& prompt,
                                         std::span<const int32_t> ids, std::size_t number) {
  const auto& place = prompt.messages.at(number);
  if (!place) return std::nullopt;
  const auto spans = spans_of(tokenizer, prompt, ids, std::span(&*place, 1));
  return spans ? std::optional(spans->front()) : std::nullopt;
}

std::vector<PositionSpan> with_pictures(std::span<const PositionSpan> spans,
                                        std::span<const int32_t> ids, int32_t image_token_id,
                                        std::span<const ImageEncoder::Encoded> pictures) {
  std::vector<int32_t> starts;  // [ids + 1]: where each token stands then
  int32_t at = 0;
  std::size_t picture = 0;
  for (const int32_t id : ids) {
    starts.push_back(at);
    at += id == image_token_id ? static_cast<int32_t>(pictures[picture++].embeddings.size(0)) : 1;
  }
  starts.push_back(at);
  std::vector<PositionSpan> moved;
  for (const PositionSpan& span : spans)
    moved.push_back(
        {starts[static_cast<std::size_t>(span.begin)], starts[static_cast<std::size_t>(span.end)]});
  return moved;
}

}  // namespace coppice
