#include "coppice/engine/token_positions.h"

#include <algorithm>

namespace coppice {
namespace {

bool any_grid(std::span<const ImageSpan> images, int64_t first, int64_t count) {
  return std::any_of(images.begin(), images.end(), [&](const ImageSpan& span) {
    return span.has_grid() && span.begin < first + count && span.end() > first;
  });
}

}  // namespace

TokenPositions token_positions(std::span<const ImageSpan> images, int64_t first, int64_t count,
                               int64_t next_rotary) {
  TokenPositions result;
  const bool three_part = any_grid(images, first, count);
  int64_t next = next_rotary;
  auto span = images.begin();
  const auto put = [&](int64_t down, int64_t across) {
    result.time.push_back(static_cast<int32_t>(next));
    result.reach = std::max(result.reach, next + std::max(down, across) + 1);
    if (!three_part) return;
    result.height.push_back(static_cast<int32_t>(next + down));
    result.width.push_back(static_cast<int32_t>(next + across));
  };
  for (int64_t token = first; token < first + count; ++token) {
    while (span != images.end() && (span->end() <= token || !span->has_grid())) ++span;
    if (span == images.end() || token < span->begin) {
      put(0, 0);
      ++next;
      continue;
    }
    const int64_t place = token - span->begin;
    put(place / span->grid_width, place % span->grid_width);
    if (token + 1 == span->end()) next += span->extent();
  }
  result.next = next;
  return result;
}

}  // namespace coppice
