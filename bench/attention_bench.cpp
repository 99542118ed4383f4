// Time of attention alone, at the shapes of SmolLM2-135M: 30 layers, 9 query heads on 3 KV heads of
// width 64.
//   decode    one token, every row at the given length; bytes are those of K and V
//   prefill   chunks of 128 tokens from 512 to 4,096
// Beside it the machine's own speed: the sum of a large array, by as many threads.
//   coppice_attention_bench [--quick]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string_view>
#include <vector>

#include "coppice/ops/cpu_features.h"
#include "coppice/ops/paged_attention.h"
#include "coppice/ops/parallel.h"

namespace {

using namespace coppice::ops;

constexpr int64_t kLayers = 30;
constexpr int64_t kKvHeads = 3;
constexpr int64_t kGroup = 3;
constexpr int64_t kDim = 64;

// Median seconds of `rounds` calls, after one that is not counted.
template <typename Fn>
double median_seconds(int rounds, const Fn& fn) {
  std::vector<double> times;
  for (int i = 0; i <= rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    fn();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (i > 0) times.push_back(spent.count());
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<std::size_t>(rounds) / 2];
}

// A pool of 16-bit zeros. A row's blocks come in runs of `run`: 8 after a prefill in chunks of 128
// tokens, 1 where all rows have grown token by token.
struct Pool {
  int64_t blocks_per_row;
  std::vector<uint16_t> keys, values;
  std::vector<int32_t> positions;
  std::vector<int32_t> tables;  // [layers x KV heads, blocks_per_row]

  Pool(int64_t length, int64_t run)
      : blocks_per_row((length + kSlots * run - 1) / (kSlots * run) * run) {
    const int64_t rows = kLayers * kKvHeads;
    const auto blocks = static_cast<std::size_t>(rows * blocks_per_row);
    keys.resize(blocks * kDim * kSlots);
    values.resize(blocks * kDim * kSlots);
    positions.resize(blocks * kSlots);
    tables.resize(blocks);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t b = 0; b < blocks_per_row; ++b)
        tables[static_cast<std::size_t>(r * blocks_per_row + b)] =
            static_cast<int32_t>((b / run * rows + r) * run + b % run);
  }

  // All layers, `tokens` new ones at the end of rows of `length`.
  void attend(int64_t length, int64_t tokens, const std::vector<float>& q, std::vector<float>& out,
              PagedWorkspace& workspace) const {
    const PagedPool pool = {keys.data(), values.data(), positions.data(), PoolType::kF16, kDim};
    const PagedQueries queries = {q.data(), out.data(), kKvHeads * kGroup, kGroup, 0.125, 0};
    std::vector<PagedRow> rows(kKvHeads);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int64_t h = 0; h < kKvHeads; ++h)
        rows[static_cast<std::size_t>(h)] = {
            tables.data() + (layer * kKvHeads + h) * blocks_per_row, length, 0, tokens, h};
      paged_attention(pool, rows, queries, workspace);
    }
  }
};

double stream_bytes_per_second(int rounds) {
  std::vector<uint64_t> data(std::size_t{16} << 20, 1);
  std::vector<uint64_t> sums(1024);
  const auto size = static_cast<int64_t>(data.size());
  const double seconds = median_seconds(rounds, [&] {
    parallel_for(0, 1024, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto* from = data.data() + i * (size / 1024);
        sums[static_cast<std::size_t>(i)] = std::accumulate(from, from + size / 1024, uint64_t{0});
      }
    });
  });
  return static_cast<double>(size) * 8.0 / seconds;
}

void bench_decode(int rounds) {
  for (const int64_t run : {8, 1})
    for (const int64_t length : {256, 512, 2048, 6000}) {
      const Pool pool(length, run);
      const std::vector<float> q(kKvHeads * kGroup * kDim, 0.5F);
      std::vector<float> out(q.size());
      PagedWorkspace workspace;
      const double seconds =
          median_seconds(rounds, [&] { pool.attend(length, 1, q, out, workspace); });
      const double bytes = static_cast<double>(kLayers * kKvHeads * length * kDim * 2 * 2);
      fmt::print("  decode, rows of {:5}, blocks in runs of {}: {:7.3f} ms a step, {:5.1f} GB/s\n",
                 length, run, seconds * 1e3, bytes / seconds / 1e9);
    }
}

void bench_prefill(int rounds) {
  constexpr int64_t kTokens = 128;
  for (const int64_t length : {512, 1024, 2048, 4096}) {
    const Pool pool(length, 8);
    const std::vector<float> q(kTokens * kKvHeads * kGroup * kDim, 0.5F);
    std::vector<float> out(q.size());
    PagedWorkspace workspace;
    const double seconds =
        median_seconds(rounds, [&] { pool.attend(length, kTokens, q, out, workspace); });
    const double seen = static_cast<double>(kTokens) * (static_cast<double>(length) - 63.5);
    const double flops = seen * kLayers * kKvHeads * kGroup * kDim * 4.0;
    fmt::print("  chunk of 128, rows of {:5}: {:8.2f} ms, {:6.0f} tokens/s, {:6.1f} GFLOP/s\n",
               length, seconds * 1e3, kTokens / seconds, flops / seconds / 1e9);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const int rounds = quick ? 3 : 15;
  const int most = num_threads();
  for (const int threads : {1, 2}) {
    if (threads > most) break;
    set_num_threads(threads);
    fmt::print("{} thread(s), {}, float16 pool; reading an array: {:.1f} GB/s\n", threads,
               cpu_level_name(cpu_level()), stream_bytes_per_second(rounds) / 1e9);
    bench_decode(rounds);
    bench_prefill(quick ? 1 : 3);
  }
  return 0;
}
