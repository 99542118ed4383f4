#include "coppice/ops/paged_attention.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "coppice/ops/attention_reference.h"
#include "coppice/ops/paged_attention_reference.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> all;
  for (const CpuLevel level : {CpuLevel::kPortable, CpuLevel::kAvx2, CpuLevel::kAvx512})
    if (level <= detected_cpu_level()) all.push_back(level);
  return all;
}

struct Shape {
  int64_t kv_heads = 3;
  int64_t group = 3;
  int64_t head_dim = 64;
  at::ScalarType dtype = at::kFloat;
};

PoolType pool_type(at::ScalarType dtype) {
  if (dtype == at::kHalf) return PoolType::kF16;
  return dtype == at::kBFloat16 ? PoolType::kBF16 : PoolType::kF32;
}

// A pool whose blocks are scattered over rows, everything that no row holds being NaN.
struct Fixture {
  Shape shape;
  PagedTensors pool;
  std::vector<std::vector<int32_t>> tables;
  std::vector<PagedRow> rows;
  at::Tensor q;

  // lengths[s][h] entries of sequence s and head h, tokens[s] of them new.
  Fixture(const Shape& s, const std::vector<std::vector<int64_t>>& lengths,
          const std::vector<int64_t>& tokens, uint64_t seed = 1)
      : shape(s) {
    at::manual_seed(seed);
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::vector<int32_t> free;
    for (const auto& heads : lengths)
      for (const int64_t length : heads)
        for (int64_t b = 0; b < length / kSlots + 2; ++b)
          free.push_back(static_cast<int32_t>(free.size()));
    std::shuffle(free.begin(), free.end(), random);
    const auto blocks = static_cast<int64_t>(free.size());
    const double nan = std::numeric_limits<double>::quiet_NaN();
    pool.keys = at::full({blocks, s.head_dim, kSlots}, nan, at::TensorOptions(s.dtype));
    pool.values = at::full({blocks, kSlots, s.head_dim}, nan, at::TensorOptions(s.dtype));
    pool.positions = at::full({blocks, kSlots}, -1, at::kInt);
    int64_t first_token = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      for (std::size_t h = 0; h < lengths[i].size(); ++h) {
        std::vector<int32_t> table;
        for (int64_t e = 0; e < lengths[i][h]; e += kSlots) {
          table.push_back(free.back());
          free.pop_back();
        }
        tables.push_back(table);
        rows.push_back({nullptr, lengths[i][h], first_token, tokens[i], static_cast<int64_t>(h)});
        fill(tables.back(), lengths[i][h]);
      }
      first_token += tokens[i];
    }
    for (std::size_t r = 0; r < rows.size(); ++r) rows[r].blocks = tables[r].data();
    q = at::randn({first_token, s.kv_heads * s.group, s.head_dim});
  }

  void fill(const std::vector<int32_t>& table, int64_t length) {
    for (int64_t e = 0; e < length; ++e) {
      const int64_t block = table[static_cast<std::size_t>(e / kSlots)];
      pool.keys.select(0, block).select(1, e % kSlots).copy_(at::randn({shape.head_dim}));
      pool.values.select(0, block).select(0, e % kSlots).copy_(at::randn({shape.head_dim}));
      pool.positions[block][e % kSlots] = 3 * e + 1;
    }
  }

  double scale() const { return 1.0 / std::sqrt(static_cast<double>(shape.head_dim)); }

  at::Tensor fast(CpuLevel level, int64_t window = 0) const {
    return fast_rows(rows, level, window);
  }
  at::Tensor fast_rows(std::span<const PagedRow> some, CpuLevel level, int64_t window = 0) const {
    at::Tensor out = at::zeros_like(q);
    PagedWorkspace workspace;
    const PagedPool raw = {pool.keys.data_ptr(), pool.values.data_ptr(),
                           pool.positions.const_data_ptr<int32_t>(), pool_type(shape.dtype),
                           shape.head_dim};
    const PagedQueries queries = {q.const_data_ptr<float>(),
                                  out.mutable_data_ptr<float>(),
                                  q.size(1),
                                  shape.group,
                                  scale(),
                                  window};
    paged_attention(raw, some, queries, workspace, level);
    return out;
  }
  // In float64, from the pool's own numbers.
  at::Tensor reference(int64_t window = 0) const {
    return paged_attention_reference(pool, rows, q.to(at::kDouble), shape.group, scale(), window);
  }
};

void expect_near(const at::Tensor& got, const at::Tensor& expected, double tolerance) {
  ASSERT_FALSE(got.isnan().any().item<bool>());
  const double worst = (got.to(at::kDouble) - expected).abs().max().item<double>();
  EXPECT_LE(worst, tolerance);
}

constexpr double kTolerance = 3e-6;

TEST(PagedAttention, decode_equals_reference_on_every_level_dtype_and_width) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const int64_t head_dim : {8, 16, 24, 64, 80, 128})
      for (const int64_t group : {1, 3, 7}) {
        const Fixture f({2, group, head_dim, dtype}, {{700, 5}, {256, 257}}, {1, 1});
        for (const CpuLevel level : levels()) {
          SCOPED_TRACE(fmt::format("{} D {} G {}", cpu_level_name(level), head_dim, group));
          expect_near(f.fast(level), f.reference(), kTolerance);
        }
      }
}

TEST(PagedAttention, K09_lengths_around_every_page_edge_read_no_freed_slot) {
  for (const int64_t length : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 511, 513})
    for (const int64_t tokens : {1, 2, 16}) {
      if (tokens > length) continue;
      const Fixture f({1, 4, 16, at::kHalf}, {{length}}, {tokens});
      for (const CpuLevel level : levels()) {
        SCOPED_TRACE(fmt::format("{} L {} T {}", cpu_level_name(level), length, tokens));
        expect_near(f.fast(level), f.reference(), kTolerance);
      }
    }
}

TEST(PagedAttention, prefill_chunk_equals_reference) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const int64_t tokens : {7, 33, 128}) {
      const Fixture f({2, 3, 32, dtype}, {{tokens, 400}, {300, tokens}}, {tokens, tokens});
      for (const CpuLevel level : levels()) expect_near(f.fast(level), f.reference(), kTolerance);
    }
}

TEST(PagedAttention, window_counts_positions) {
  for (const int64_t window : {1, 2, 50, 700, 5000})
    for (const int64_t tokens : {1, 40}) {
      const Fixture f({2, 2, 16, at::kFloat}, {{600, 45}}, {tokens});
      for (const CpuLevel level : levels()) {
        SCOPED_TRACE(window);
        expect_near(f.fast(level, window), f.reference(window), kTolerance);
      }
    }
}

// One token at a time, each seeing a row that ends with it, is the chunk; other rows change
// nothing.
TEST(PagedAttention, result_is_bit_equal_alone_batched_and_chunked) {
  const Fixture f({2, 3, 64, at::kHalf}, {{600, 40}, {90, 1000}, {64, 64}}, {37, 1, 64});
  for (const CpuLevel level : levels()) {
    const at::Tensor together = f.fast(level);
    at::Tensor apart = at::zeros_like(together);
    for (const PagedRow& row : f.rows)
      for (int64_t t = 0; t < row.num_tokens; ++t) {
        PagedRow one = row;
        one.length = row.length - row.num_tokens + t + 1;
        one.first_token = row.first_token + t;
        one.num_tokens = 1;
        apart += f.fast_rows({&one, 1}, level);
      }
    EXPECT_TRUE(together.equal(apart)) << cpu_level_name(level);
  }
}

TEST(PagedAttention, result_does_not_depend_on_threads) {
  const Fixture f({3, 3, 64, at::kHalf}, {{3000, 40, 900}, {90, 2000, 1}}, {1, 1});
  const int before = num_threads();
  const at::Tensor first = f.fast(cpu_level());
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    for (int round = 0; round < 20; ++round) EXPECT_TRUE(f.fast(cpu_level()).equal(first));
  }
  set_num_threads(before);
}

TEST(PagedAttention, levels_agree_within_rounding) {
  const Fixture f({2, 3, 64, at::kHalf}, {{600, 40}}, {20});
  const at::Tensor expected = f.fast(CpuLevel::kPortable).to(at::kDouble);
  for (const CpuLevel level : levels()) expect_near(f.fast(level), expected, kTolerance);
}

TEST(PagedAttention, K05_query_heads_of_a_group_read_their_own_kv_head) {
  Fixture f({2, 4, 16, at::kFloat}, {{6, 6}}, {1});
  f.q.zero_();
  f.q[0][5].fill_(1.0);  // belongs to KV head 1
  const int64_t block = f.tables[1][0];
  f.pool.keys.select(0, block).narrow(1, 0, 6).zero_();
  f.pool.keys.select(0, block).select(1, 3).fill_(100.0);
  for (const CpuLevel level : levels()) {
    const at::Tensor out = f.fast(level);
    EXPECT_TRUE(out[0][5].equal(f.pool.values[block][3]));
    const at::Tensor mean0 = f.pool.values[f.tables[0][0]].narrow(0, 0, 6).mean(0);
    const at::Tensor mean1 = f.pool.values[block].narrow(0, 0, 6).mean(0);
    for (const int64_t head : {0, 1, 2, 3})
      EXPECT_TRUE(out[0][head].allclose(mean0, 1e-5, 1e-6)) << head;
    for (const int64_t head : {4, 6, 7})
      EXPECT_TRUE(out[0][head].allclose(mean1, 1e-5, 1e-6)) << head;
  }
}

TEST(PagedAttention, K11_every_path_attends_the_first_entries) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const int64_t tokens : {1, 16, 64}) {
      Fixture f({1, 2, 32, dtype}, {{700}}, {tokens});
      for (const CpuLevel level : levels()) {
        const at::Tensor before = f.fast(level);
        const at::Tensor sinks = f.pool.values[f.tables[0][0]].narrow(0, 0, 4);
        const at::Tensor kept = sinks.clone();
        sinks.zero_();
        const at::Tensor change = (f.fast(level) - before).abs().amax({1, 2});
        EXPECT_GT(change.min().item<double>(), 1e-5);
        sinks.copy_(kept);
      }
    }
}

TEST(PagedAttention, K22_nothing_visible_gives_zeros) {
  Fixture f({1, 2, 16, at::kFloat}, {{20}}, {2});
  f.rows[0].length = 0;
  PagedRow short_row = f.rows[0];
  short_row.length = 1;  // of two tokens' entries only the second's is there
  for (const CpuLevel level : levels()) {
    EXPECT_TRUE(f.fast(level).equal(at::zeros_like(f.q)));
    const at::Tensor out = f.fast_rows({&short_row, 1}, level);
    EXPECT_TRUE(out[0].equal(at::zeros_like(out[0])));
    EXPECT_TRUE(out[1][0].equal(f.pool.values[f.tables[0][0]][0]));
  }
}

TEST(PagedAttention, large_logits_neither_overflow_nor_vanish) {
  Fixture f({1, 1, 16, at::kFloat}, {{600}}, {1});
  f.q.mul_(300.0);
  for (const CpuLevel level : levels()) {
    const at::Tensor out = f.fast(level);
    // Logits of some hundreds carry an absolute rounding error of 1e-5 each.
    EXPECT_TRUE(out.to(at::kDouble).allclose(f.reference(), 1e-3, 1e-3));
  }
}

TEST(PagedAttention, half_numbers_of_every_size_are_read_exactly) {
  Fixture f({1, 1, 16, at::kHalf}, {{1}}, {1});
  for (const double value : {0.0, -0.0, 6e-8, -6e-5, 6.1e-5, 1.0, -1.5, 65504.0}) {
    f.pool.values[f.tables[0][0]][0].fill_(value);
    const at::Tensor expected = f.pool.values[f.tables[0][0]][0].to(at::kFloat);
    f.pool.keys[f.tables[0][0]].zero_();
    for (const CpuLevel level : levels())
      EXPECT_TRUE(f.fast(level)[0][0].equal(expected)) << cpu_level_name(level) << value;
  }
}

TEST(PagedAttention, reference_equals_dense_attention) {
  const Fixture f({1, 2, 16, at::kDouble}, {{40}}, {8});
  const at::Tensor blocks =
      at::tensor(std::vector<int64_t>(f.tables[0].begin(), f.tables[0].end()));
  const at::Tensor k = f.pool.keys.index_select(0, blocks).transpose(1, 2).flatten(0, 1);
  const at::Tensor v = f.pool.values.index_select(0, blocks).flatten(0, 1);
  const at::Tensor expected =
      attention_reference(f.q.to(at::kDouble), k.narrow(0, 0, 40).unsqueeze(1),
                          v.narrow(0, 0, 40).unsqueeze(1), f.scale(), causal_mask(8, 40, 0));
  expect_near(f.reference(), expected, 1e-12);
}

}  // namespace
}  // namespace coppice::ops
