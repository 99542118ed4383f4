#include "coppice/attention/compact_positions.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "coppice/attention/paged_backend.h"
#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/ops/rope.h"

namespace coppice {
namespace {

using torch::Tensor;

constexpr int64_t kHeads = 2;
constexpr int64_t kDim = 32;

CacheConfig cache_config(at::ScalarType dtype) {
  CacheConfig config;
  config.num_layers = 1;
  config.num_kv_heads = kHeads;
  config.head_dim = kDim;
  config.dtype = dtype;
  config.max_blocks = 256;
  config.rotary_positions = true;
  return config;
}

Tensor frequencies() { return ops::rope_frequencies(10000.0, kDim); }

// x [T, H, D] rotated to first .. first + T - 1.
Tensor rotated(const Tensor& x, int64_t first) {
  const ops::RopeTable table(frequencies());
  return ops::apply_rope_reference(
      x, table.angles(torch::arange(first, first + x.size(0)), torch::kFloat));
}

// A cache fed with keys whose unrotated form is known, as an engine with --positions compact does.
struct Feed {
  KvCache cache;
  SequenceId id;
  Tensor raw_k, v;  // [tokens, H, D]
  int64_t trained;
  int64_t compactions = 0;

  Feed(at::ScalarType dtype, int64_t tokens, int64_t trained_positions)
      : cache(cache_config(dtype)),
        id(cache.add_sequence()),
        raw_k(torch::randn({tokens, kHeads, kDim})),
        v(torch::randn({tokens, kHeads, kDim})),
        trained(trained_positions) {}

  // Appends `count` tokens; true when rows were renumbered first.
  bool step(int64_t count) {
    const bool due = count > trained - cache.next_rotary(id);
    if (due) {
      compact_positions(cache, id, frequencies(), trained);
      ++compactions;
    }
    const int64_t first = cache.tokens_seen(id);
    EXPECT_TRUE(cache.reserve(id, count));
    cache.append(0, id, rotated(raw_k.narrow(0, first, count), cache.next_rotary(id)),
                 v.narrow(0, first, count), {}, {});
    cache.commit(id);
    return due;
  }

  std::vector<int32_t> rotary(int64_t head) {
    std::vector<int32_t> out;
    const BlockTable& row = cache.row(id, 0, head);
    for (int64_t e = 0; e < row.length; ++e)
      out.push_back(cache.rotary_positions()[row.blocks[static_cast<std::size_t>(e / 16)]][e % 16]
                        .item<int32_t>());
    return out;
  }

  void keep_if(int64_t head, const std::function<bool(int32_t)>& wanted) {
    std::vector<uint8_t> keep;
    for (const int32_t p : cache.read_row(id, 0, head).positions) keep.push_back(wanted(p) ? 1 : 0);
    cache.keep(id, 0, head, keep);
  }

  // Largest distance between a stored key and its raw key rotated afresh, over the key's size.
  double worst_error() {
    double worst = 0.0;
    for (int64_t head = 0; head < kHeads; ++head) {
      const KvCache::RowContent row = cache.read_row(id, 0, head);
      const std::vector<int32_t> at = rotary(head);
      for (std::size_t e = 0; e < at.size(); ++e) {
        const Tensor raw = raw_k[row.positions[e]].narrow(0, head, 1).unsqueeze(0);
        const Tensor fresh = rotated(raw, at[e]).flatten();
        const Tensor stored = row.k[static_cast<int64_t>(e)].to(torch::kFloat);
        worst = std::max(worst, ((stored - fresh).norm() / fresh.norm()).item<double>());
      }
    }
    return worst;
  }
};

// Sinks 4, window 8, 40 tokens, the trained range 24; the reading is followed by hand.
TEST(CompactPositions, K03_distances_follow_the_documented_reading) {
  torch::manual_seed(1);
  Feed feed(at::kFloat, 40, 24);
  std::map<int32_t, int32_t> expected;  // position -> rotary position
  int32_t next = 0;
  for (int32_t t = 0; t < 40; ++t) {
    if (next + 1 > 24) {
      const int32_t p = std::min<int32_t>(static_cast<int32_t>(expected.size()), 12);
      int32_t newer = static_cast<int32_t>(expected.size());
      for (auto& [position, rotary] : expected) rotary = std::max(0, p - 1 - --newer);
      next = p;
    }
    feed.step(1);
    expected[t] = next++;
    for (int64_t head = 0; head < kHeads; ++head)
      feed.keep_if(head, [&](int32_t p) { return p < 4 || p > t - 8; });
    std::erase_if(expected, [&](const auto& e) { return e.first >= 4 && e.first <= t - 8; });
    ASSERT_EQ(feed.cache.next_rotary(feed.id), next);
    ASSERT_EQ(feed.cache.tokens_seen(feed.id), t + 1);  // original positions go on counting
    for (int64_t head = 0; head < kHeads; ++head) {
      const std::vector<int32_t> positions = feed.cache.read_row(feed.id, 0, head).positions;
      const std::vector<int32_t> at = feed.rotary(head);
      ASSERT_EQ(positions.size(), expected.size());
      for (std::size_t e = 0; e < at.size(); ++e) {
        EXPECT_EQ(at[e], expected.at(positions[e])) << "token " << t << " entry " << positions[e];
        EXPECT_LT(at[e], 24);
      }
    }
  }
  EXPECT_EQ(feed.compactions, 2);
  EXPECT_LE(feed.worst_error(), 1e-5);
}

TEST(CompactPositions, ten_renumberings_do_not_drift) {
  torch::manual_seed(2);
  // The error of one rounding to the storage type, relative to a key's size.
  const std::vector<std::pair<at::ScalarType, double>> cases = {
      {at::kFloat, 1e-6}, {at::kHalf, 2.5e-4}, {at::kBFloat16, 2e-3}};
  for (const auto& [dtype, rounding] : cases) {
    Rng rng(3);
    Feed feed(dtype, 700, 100);
    for (int32_t t = 0; feed.compactions < 10; t += 3) {
      ASSERT_LT(t, 690);
      feed.step(3);
      for (int64_t head = 0; head < kHeads; ++head) {
        const double share = head == 0 ? 0.93 : 0.97;
        feed.keep_if(head, [&](int32_t p) { return p < 4 || rng.uniform() < share; });
      }
      // Independent roundings add up as the root of their number.
      const double bound = 3.0 * rounding * std::sqrt(1.0 + static_cast<double>(feed.compactions));
      ASSERT_LE(feed.worst_error(), bound) << c10::toString(dtype) << " at " << t;
    }
  }
}

// Nothing evicted and the row within half the range: every entry moves by the same distance, which
// no query can tell.
TEST(CompactPositions, a_plain_shift_changes_no_result) {
  torch::manual_seed(4);
  Feed feed(at::kFloat, 30, 200);
  feed.step(30);
  feed.cache.set_next_rotary(feed.id, 150);
  const SequenceId other = feed.cache.fork(feed.id);
  compact_positions(feed.cache, feed.id, frequencies(), 200);
  EXPECT_EQ(feed.cache.next_rotary(feed.id), 30);
  compact_positions(feed.cache, feed.id, frequencies(), 200);  // again: nothing moves
  const Tensor q = torch::randn({1, 2 * kHeads, kDim});
  const Tensor k = torch::randn({1, kHeads, kDim});
  const Tensor v = torch::randn({1, kHeads, kDim});
  std::vector<Tensor> outs;
  for (const SequenceId id : {feed.id, other}) {
    feed.cache.set_next_rotary(id, 30);
    PagedBackend backend(feed.cache);
    Batch batch;
    batch.sequence_ids = {id};
    batch.cu_seqlens = {0, 1};
    EXPECT_TRUE(feed.cache.reserve(id, 1));
    outs.push_back(backend.forward({0, rotated(q, 30), rotated(k, 30), v, {}, 0.2, 0}, batch));
    feed.cache.commit(id);
  }
  EXPECT_TRUE(outs[0].allclose(outs[1], 1e-5, 1e-6));
}

TEST(CompactPositions, rows_longer_than_half_the_range_clamp_to_zero) {
  torch::manual_seed(5);
  Feed feed(at::kFloat, 40, 24);
  feed.step(20);
  feed.step(4);
  EXPECT_TRUE(feed.step(1));
  std::vector<int32_t> at = feed.rotary(0);
  ASSERT_EQ(at.size(), 25U);
  for (int32_t e = 0; e < 24; ++e) EXPECT_EQ(at[static_cast<std::size_t>(e)], std::max(0, e - 12));
  EXPECT_EQ(at[24], 12);
  EXPECT_LE(feed.worst_error(), 1e-5);
}

TEST(CompactPositions, misuse_is_refused) {
  Feed feed(at::kFloat, 8, 24);
  feed.step(4);
  EXPECT_THROW(compact_positions(feed.cache, feed.id, torch::ones({3}), 24), Error);
  EXPECT_THROW(compact_positions(feed.cache, feed.id, frequencies(), 1), Error);
  ASSERT_TRUE(feed.cache.reserve(feed.id, 1));
  EXPECT_THROW(compact_positions(feed.cache, feed.id, frequencies(), 24), Error);
  CacheConfig config = cache_config(at::kFloat);
  config.rotary_positions = false;
  KvCache plain(config);
  plain.add_sequence();
  EXPECT_THROW(plain.rotary_positions(), Error);
}

}  // namespace
}  // namespace coppice
