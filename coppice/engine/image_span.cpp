#include "coppice/engine/image_span.h"

#include <algorithm>

#include "coppice/core/error.h"

namespace coppice {

bool same_images(std::span<const ImageSpan> a, std::span<const ImageSpan> b, int64_t tokens) {
  const auto within = [tokens](std::span<const ImageSpan> spans) {
    const auto end = std::find_if(spans.begin(), spans.end(),
                                  [&](const ImageSpan& span) { return span.begin >= tokens; });
    return spans.first(static_cast<std::size_t>(end - spans.begin()));
  };
  const std::span<const ImageSpan> first = within(a), second = within(b);
  return std::equal(first.begin(), first.end(), second.begin(), second.end(),
                    [](const ImageSpan& x, const ImageSpan& y) { return x.same_place(y); });
}

void add_images(std::vector<ImageSpan>& known, std::span<const ImageSpan> given, int64_t read,
                int64_t total, int64_t width) {
  int64_t free_from = 0;
  for (const ImageSpan& span : given) {
    if (span.tokens < 1 || span.begin < free_from || span.begin >= total)
      fail_argument(
          "picture: expected places in order inside the {} tokens of the prompt, got {} tokens "
          "from {}",
          total, span.tokens, span.begin);
    free_from = span.end();
    const bool there = std::any_of(known.begin(), known.end(),
                                   [&](const ImageSpan& other) { return other.same_place(span); });
    if (there) continue;
    if (span.begin < read || (!known.empty() && span.begin < known.back().end()))
      fail_argument("picture: the session has read other tokens where a picture is to be, at {}",
                    span.begin);
    const at::Tensor& rows = span.embeddings;
    if (!rows.defined() || rows.dim() != 2 || rows.size(0) != span.tokens ||
        rows.size(1) != width || !rows.is_floating_point())
      fail_argument("picture: expected embeddings [{}, {}], got {} dims with {} values",
                    span.tokens, width, rows.defined() ? rows.dim() : 0,
                    rows.defined() ? rows.numel() : 0);
    const bool in_line = span.grid_height == 0 && span.grid_width == 0;
    if (!in_line &&
        (span.grid_height < 1 || span.grid_width < 1 || span.tokens % span.grid_height != 0 ||
         span.tokens / span.grid_height != span.grid_width))
      fail_argument("picture: {} tokens do not fill a grid of {} x {}", span.tokens,
                    span.grid_width, span.grid_height);
    known.push_back(span);
  }
}

}  // namespace coppice
