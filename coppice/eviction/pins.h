// Spans of positions whose entries are never evicted: what a request pins.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

// The positions [begin, end). 0 <= begin < end, as int32 of the cache.
struct PositionSpan {
  int32_t begin = 0;
  int32_t end = 0;

  bool operator==(const PositionSpan&) const = default;
};

// In order, none empty, none touching another: the one form of a set. Throws kInvalidArgument for a
// span that is none.
std::vector<PositionSpan> merge_pins(std::vector<PositionSpan> pins);

// What follows takes merged pins.

// Their part among the first `tokens` tokens.
std::vector<PositionSpan> clip_pins(std::span<const PositionSpan> pins, int64_t tokens);

int64_t pinned_tokens(std::span<const PositionSpan> pins);

// How many of the first `seen` tokens are safe: sinks, recent and pinned ones, each counted once.
int64_t safe_tokens(int64_t sinks, int64_t recent, std::span<const PositionSpan> pins,
                    int64_t seen);

bool is_pinned(std::span<const PositionSpan> pins, int32_t position);

}  // namespace coppice
