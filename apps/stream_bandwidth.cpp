#include "apps/stream_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "coppice/ops/packed_memory.h"
#include "coppice/ops/parallel.h"

namespace coppice {
namespace {

constexpr int64_t kLeastBytes = 256 << 20;  // several times what caches hold
constexpr int64_t kPieceWords = 2048;

// Reads words [begin, end) in one stream; `end` - `begin` is a multiple of 32.
[[gnu::target_clones("avx512f", "avx2", "default")]] uint64_t sum_words(const uint64_t* words,
                                                                        int64_t begin,
                                                                        int64_t end) {
  uint64_t sum[32] = {};
  for (; begin < end; begin += 32) {
    for (int64_t j = 0; j < 32; ++j) sum[j] += words[begin + j];
  }
  uint64_t total = 0;
  for (const uint64_t s : sum) total += s;
  return total;
}

int64_t whole_pieces(int64_t bytes) {
  const int64_t piece = kPieceWords * 8;
  return (std::max(bytes, kLeastBytes) + piece - 1) / piece * kPieceWords;
}

}  // namespace

StreamBandwidth::StreamBandwidth(int64_t bytes)
    : words_(whole_pieces(bytes)), memory_(ops::allocate_packed(words_ * 8)) {
  std::memset(memory_.get(), 1, static_cast<std::size_t>(words_ * 8));
}

void StreamBandwidth::read() {
  const auto* words = reinterpret_cast<const uint64_t*>(memory_.get());
  std::atomic<uint64_t> total{0};
  ops::parallel_for_guided(0, words_ / kPieceWords, 1, [&](int64_t begin, int64_t end) {
    total += sum_words(words, begin * kPieceWords, end * kPieceWords);
  });
  volatile uint64_t sink = total.load();  // or the compiler would leave the reading out
  (void)sink;
}

double StreamBandwidth::measure(int passes) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  for (int i = -1; i < std::max(1, passes); ++i) {
    const Clock::time_point begin = Clock::now();
    read();
    if (i >= 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return static_cast<double>(bytes()) / *middle;
}

}  // namespace coppice
