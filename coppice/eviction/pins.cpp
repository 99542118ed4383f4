#include "coppice/eviction/pins.h"

#include <algorithm>

#include "coppice/core/error.h"

namespace coppice {
namespace {

// Tokens of `pins` in [first, last).
int64_t pinned_within(std::span<const PositionSpan> pins, int64_t first, int64_t last) {
  int64_t tokens = 0;
  for (const PositionSpan& pin : pins)
    tokens += std::max<int64_t>(
        0, std::min<int64_t>(pin.end, last) - std::max<int64_t>(pin.begin, first));
  return tokens;
}

}  // namespace

std::vector<PositionSpan> merge_pins(std::vector<PositionSpan> pins) {
  for (const PositionSpan& pin : pins) {
    if (pin.begin < 0 || pin.end <= pin.begin)
      fail_argument("pins: expected positions from 0 on and an end behind the begin, got {} to {}",
                    pin.begin, pin.end);
  }
  std::sort(pins.begin(), pins.end(),
            [](const PositionSpan& a, const PositionSpan& b) { return a.begin < b.begin; });
  std::vector<PositionSpan> merged;
  for (const PositionSpan& pin : pins) {
    if (!merged.empty() && pin.begin <= merged.back().end)
      merged.back().end = std::max(merged.back().end, pin.end);
    else
      merged.push_back(pin);
  }
  return merged;
}

std::vector<PositionSpan> clip_pins(std::span<const PositionSpan> pins, int64_t tokens) {
  std::vector<PositionSpan> clipped;
  for (const PositionSpan& pin : pins) {
    if (pin.begin >= tokens) break;
    clipped.push_back({pin.begin, static_cast<int32_t>(std::min<int64_t>(pin.end, tokens))});
  }
  return clipped;
}

int64_t pinned_tokens(std::span<const PositionSpan> pins) {
  int64_t tokens = 0;
  for (const PositionSpan& pin : pins) tokens += pin.end - pin.begin;
  return tokens;
}

int64_t safe_tokens(int64_t sinks, int64_t recent, std::span<const PositionSpan> pins,
                    int64_t seen) {
  const int64_t first = std::min(sinks, seen);
  const int64_t last = std::max(first, seen - std::min(recent, seen));
  return first + pinned_within(pins, first, last) + (seen - last);
}

bool is_pinned(std::span<const PositionSpan> pins, int32_t position) {
  return std::any_of(pins.begin(), pins.end(), [position](const PositionSpan& pin) {
    return position >= pin.begin && position < pin.end;
  });
}

}  // namespace coppice
