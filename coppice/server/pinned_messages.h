// Messages that a request names by number, to be pinned (`kv.keep`) or as ends of beginnings that
// others share (`kv.mark`), as positions of its prompt.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coppice/engine/image_encoder.h"
#include "coppice/eviction/pins.h"
#include "coppice/processor/chat_template.h"
#include "coppice/processor/tokenizer.h"

namespace coppice {

// The tokens of each of the messages `numbers` among `ids`, which `tokenizer` made of `prompt`; in
// order. Throws ApiError 400 for `field`: there is no such message, the template or the vocabulary
// does not show where it stands, or it stands nowhere.
std::vector<PositionSpan> message_spans(const Tokenizer& tokenizer, const RenderedPrompt& prompt,
                                        std::span<const int32_t> ids,
                                        std::span<const int64_t> numbers, const char* field);

// Those of one message, where they are shown.
std::optional<PositionSpan> find_message(const Tokenizer& tokenizer, const RenderedPrompt& prompt,
                                         std::span<const int32_t> ids, std::size_t number);

// The same spans once set_prompt() has put the pictures in.
std::vector<PositionSpan> with_pictures(std::span<const PositionSpan> spans,
                                        std::span<const int32_t> ids, int32_t image_token_id,
                                        std::span<const ImageEncoder::Encoded> pictures);

}  // namespace coppice
