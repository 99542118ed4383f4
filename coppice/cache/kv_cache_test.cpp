#include "coppice/cache/kv_cache.h"

#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>

#include "coppice/cache/cache_testing.h"
#include "coppice/core/error.h"
#include "coppice/core/rng.h"

namespace coppice {
namespace {

using testing::append_all;
using testing::append_layer;
using testing::expect_clean;
using testing::expect_content;
using testing::feed;
using testing::Filler;

CacheConfig tiny(int64_t blocks = 64, at::ScalarType dtype = at::kFloat) {
  return {.num_layers = 2, .num_kv_heads = 3, .head_dim = 8, .dtype = dtype, .max_blocks = blocks};
}

Filler filler(int64_t salt = 0) {
  return {.salt = salt, .gate = [](int64_t l, int64_t h, int64_t p) {
            return -static_cast<float>((l * 7 + h * 3 + p) % 11) / 16.0f;
          }};
}

TEST(KvCache, bad_sizes_are_refused) {
  for (auto change : std::vector<void (*)(CacheConfig&)>{
           [](CacheConfig& c) { c.num_layers = 0; }, [](CacheConfig& c) { c.num_kv_heads = -1; },
           [](CacheConfig& c) { c.head_dim = 0; }, [](CacheConfig& c) { c.max_blocks = 0; },
           [](CacheConfig& c) { c.dtype = at::kInt; },
           [](CacheConfig& c) { c.head_dim = int64_t{1} << 60; },
           [](CacheConfig& c) { c.max_blocks = int64_t{1} << 40; },
           [](CacheConfig& c) { c.num_layers = c.num_kv_heads = int64_t{1} << 20; }}) {
    CacheConfig config = tiny();
    change(config);
    EXPECT_THROW(KvCache{config}, Error);
  }
}

TEST(KvCache, K06_bytes_are_those_of_the_kv_heads_alone) {
  // 8 query heads read these 2 KV heads; the cache knows the latter only. 32 tokens fill 2 blocks a
  // row.
  const CacheConfig config = {
      .num_layers = 3, .num_kv_heads = 2, .head_dim = 16, .dtype = at::kHalf, .max_blocks = 64};
  const int64_t metadata = 4 + 4 + 4 + 1;  // position, log_beta, aux, modality
  EXPECT_EQ(config.entry_bytes(), 2 * 16 * 2 + metadata);
  KvCache cache(config);
  feed(cache, cache.add_sequence(), 32, filler());
  EXPECT_EQ(cache.bytes_in_use(), 3 * 2 * 32 * (2 * 16 * 2 + metadata));
}

TEST(KvCache, memory_that_cannot_be_had_is_a_capacity_error) {
  CacheConfig config = tiny(int64_t{1} << 30);
  config.head_dim = 1 << 20;  // 2^56 bytes
  try {
    KvCache cache(config);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCapacity);
  }
}

TEST(KvCache, every_storage_type_round_trips) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    KvCache cache(tiny(64, dtype));
    const SequenceId id = cache.add_sequence();
    for (const int64_t tokens : {1, 37, 5, 16}) feed(cache, id, tokens, filler());
    expect_content(cache, id, filler());
    expect_clean(cache);
    EXPECT_EQ(cache.tokens_seen(id), 59);
    EXPECT_EQ(cache.entries(id), 59 * 6);
    EXPECT_EQ(cache.blocks_in_use(), 4 * 6);
    EXPECT_EQ(cache.read_row(id, 0, 0).k.scalar_type(), dtype);
  }
}

// Rounding equals tensor.to() for numbers that 16 bits do not hold, widths that fill no vector,
// strided inputs, and inputs of other types.
TEST(KvCache, rounds_as_tensors_do) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    for (const auto input : {at::kFloat, at::kDouble, at::kBFloat16}) {
      CacheConfig config = tiny(64, dtype);
      config.num_layers = 1;
      config.head_dim = 21;
      KvCache cache(config);
      const SequenceId id = cache.add_sequence();
      const at::Tensor both = at::randn({19, 6, 21}).mul(100).to(input);
      const at::Tensor k = both.narrow(1, 0, 3), v = both.narrow(1, 3, 3);
      ASSERT_TRUE(cache.reserve(id, 19));
      cache.append(0, id, k, v, at::Tensor(), at::Tensor());
      for (int64_t h = 0; h < 3; ++h) {
        const auto row = cache.read_row(id, 0, h);
        const auto via = dtype == at::kDouble ? at::kDouble : at::kFloat;
        EXPECT_TRUE(row.k.equal(k.select(1, h).to(via).to(dtype)));
        EXPECT_TRUE(row.v.equal(v.select(1, h).to(via).to(dtype)));
      }
    }
  }
}

TEST(KvCache, the_layout_is_the_one_of_the_header) {
  KvCache cache(tiny());
  const SequenceId id = cache.add_sequence();
  feed(cache, id, 20, filler());
  const int64_t block = cache.row(id, 1, 2).blocks[1];  // entries 16 to 19
  EXPECT_EQ(cache.keys().const_data_ptr<float>()[(block * 8 + 5) * 16 + 3],
            testing::key_at(0, 1, 2, 19, 5));
  EXPECT_EQ(cache.values().const_data_ptr<float>()[(block * 16 + 3) * 8 + 5],
            testing::value_at(0, 1, 2, 19, 5));
  EXPECT_EQ(cache.positions().const_data_ptr<int32_t>()[block * 16 + 3], 19);
}

TEST(KvCache, calls_out_of_order_are_refused_and_change_nothing) {
  KvCache cache(tiny());
  const SequenceId id = cache.add_sequence();
  EXPECT_THROW(append_layer(cache, id, 0, filler()), Error);
  EXPECT_THROW(cache.commit(id), Error);
  EXPECT_THROW((void)cache.reserve(id, 0), Error);
  EXPECT_THROW((void)cache.reserve(id + 1, 1), Error);
  EXPECT_THROW(cache.row(id, 2, 0), Error);
  EXPECT_THROW(cache.row(id, 0, 3), Error);
  EXPECT_THROW(cache.row(id, -1, 0), Error);
  ASSERT_TRUE(cache.reserve(id, 4));
  EXPECT_THROW((void)cache.reserve(id, 4), Error);
  EXPECT_THROW(cache.fork(id), Error);
  append_layer(cache, id, 0, filler());
  EXPECT_THROW(append_layer(cache, id, 0, filler()), Error);
  EXPECT_THROW(append_layer(cache, id, 2, filler()), Error);
  EXPECT_THROW(cache.commit(id), Error);
  EXPECT_THROW(cache.keep(id, 0, 0, std::vector<uint8_t>(4, 1)), Error);
  expect_clean(cache);
  append_layer(cache, id, 1, filler());
  cache.commit(id);
  EXPECT_THROW(cache.keep(id, 0, 0, std::vector<uint8_t>(3, 1)), Error);
  const auto drop = [&](int64_t row, const std::vector<int32_t>& places) {
    const RowDrop drops[] = {{row, places}};
    cache.drop(id, drops);
  };
  EXPECT_THROW(drop(0, {1, 1}), Error);
  EXPECT_THROW(drop(0, {4}), Error);
  EXPECT_THROW(drop(0, {-1}), Error);
  EXPECT_THROW(drop(-1, {0}), Error);
  EXPECT_THROW(drop(cache.config().num_rows(), {0}), Error);
  const std::vector<int32_t> first = {0};
  const RowDrop twice[] = {{0, first}, {0, first}};
  EXPECT_THROW(cache.drop(id, twice), Error);
  const float aux[] = {1.0f, 2.0f};
  std::vector<float> keys;
  EXPECT_THROW(cache.set_aux(id, 0, 0, 3, aux), Error);
  EXPECT_THROW(cache.set_aux(id, 0, 0, -1, aux), Error);
  EXPECT_THROW(cache.read_keys(id, 0, 0, 3, 2, keys), Error);
  EXPECT_THROW(cache.read_keys(id, 0, 0, 1, -1, keys), Error);
  expect_content(cache, id, filler());
  expect_clean(cache);
}

TEST(KvCache, misshapen_tensors_are_refused) {
  KvCache cache(tiny());
  const SequenceId id = cache.add_sequence();
  ASSERT_TRUE(cache.reserve(id, 2));
  const at::Tensor good = at::randn({2, 3, 8}), none;
  EXPECT_THROW(cache.append(0, id, at::randn({3, 3, 8}), good, none, none), Error);
  EXPECT_THROW(cache.append(0, id, good, at::randn({2, 3, 9}), none, none), Error);
  EXPECT_THROW(cache.append(0, id, none, good, none, none), Error);
  EXPECT_THROW(cache.append(0, id, good, good, at::randn({2, 2}), none), Error);
  EXPECT_THROW(cache.append(0, id, good, good, none, at::randn({3})), Error);
  EXPECT_EQ(cache.entries(id), 0);
}

TEST(KvCache, a_full_pool_refuses_and_stays_as_it_was) {
  KvCache cache(tiny(7));
  const SequenceId id = cache.add_sequence();
  feed(cache, id, 16, filler());  // 6 blocks
  EXPECT_FALSE(cache.reserve(id, 1));
  EXPECT_THROW(cache.fork(id), Error);
  EXPECT_EQ(cache.blocks_in_use(), 6);
  EXPECT_EQ(cache.sequences().size(), 1u);
  EXPECT_LE(cache.peak_bytes(), cache.bytes_bound());
  expect_content(cache, id, filler());
  expect_clean(cache);
}

TEST(KvCache, rollback_leaves_no_trace) {
  KvCache cache(tiny());
  const SequenceId id = cache.add_sequence();
  feed(cache, id, 13, filler());
  const int64_t blocks = cache.blocks_in_use();
  for (const int64_t layers : {0, 1, 2}) {
    ASSERT_TRUE(cache.reserve(id, 40));
    for (int64_t layer = 0; layer < layers; ++layer) append_layer(cache, id, layer, filler(9));
    expect_clean(cache);
    cache.rollback(id);
    EXPECT_EQ(cache.blocks_in_use(), blocks);
    EXPECT_EQ(cache.entries(id), 13 * 6);
    expect_clean(cache);
  }
  cache.rollback(id);  // no pass: nothing to do
  feed(cache, id, 9, filler());
  expect_content(cache, id, filler());
}

TEST(KvCache, entries_of_the_pass_are_last_and_in_order) {
  KvCache cache(tiny());
  const SequenceId id = cache.add_sequence();
  feed(cache, id, 20, filler());
  std::vector<uint8_t> keep(20, 1);
  for (const std::size_t i : {0, 3, 4, 17}) keep[i] = 0;
  cache.keep(id, 1, 1, keep);
  ASSERT_TRUE(cache.reserve(id, 6));
  append_all(cache, id, filler());
  const auto row = cache.read_row(id, 1, 1);
  ASSERT_EQ(row.positions.size(), 22u);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(row.positions[static_cast<std::size_t>(16 + i)], 20 + i);
  expect_clean(cache);
}

TEST(KvCache, K19_entries_are_not_cut_off_a_committed_sequence) {
  // The only way back is rollback() of an open pass or a fork taken before.
  KvCache cache(tiny());
  const SequenceId id = cache.add_sequence();
  feed(cache, id, 10, filler());
  const SequenceId before = cache.fork(id);
  feed(cache, id, 3, filler());
  cache.rollback(id);
  EXPECT_EQ(cache.tokens_seen(id), 13);
  EXPECT_EQ(cache.tokens_seen(before), 10);
  expect_content(cache, before, filler());
}

TEST(KvCache, K16_a_fork_is_untouched_by_what_the_first_does) {
  KvCache cache(tiny(400));
  const SequenceId first = cache.add_sequence();
  feed(cache, first, 33, filler());
  cache.keep(first, 0, 1, std::vector<uint8_t>(33, 0));
  const SequenceId second = cache.fork(first);
  const auto before = cache.snapshot().sequences[1];
  feed(cache, first, 21, filler());
  std::vector<uint8_t> keep(54);
  for (std::size_t i = 0; i < keep.size(); ++i) keep[i] = i % 2 == 0 ? 1 : 0;
  cache.keep(first, 1, 1, keep);
  testing::poison_free_slots(cache);
  cache.remove_sequence(first);
  const auto after = cache.snapshot().sequences[0];
  for (std::size_t r = 0; r < before.rows.size(); ++r)
    EXPECT_EQ(before.rows[r].positions, after.rows[r].positions);
  EXPECT_EQ(cache.tokens_seen(second), 33);
  EXPECT_EQ(cache.row(second, 0, 1).length, 0);
  expect_content(cache, second, filler());
  expect_clean(cache);
}

TEST(KvCache, rotary_positions_travel_with_their_entries) {
  CacheConfig config = tiny();
  EXPECT_THROW(KvCache(config).rotary_positions(), Error);
  EXPECT_THROW(KvCache(config).set_next_rotary(0, 5), Error);
  const int64_t plain_bytes = config.entry_bytes();
  config.rotary_positions = true;
  EXPECT_EQ(config.entry_bytes(), plain_bytes + 4);
  KvCache cache(config);
  const SequenceId id = cache.add_sequence();
  feed(cache, id, 30, filler());
  cache.set_next_rotary(id, 7);
  feed(cache, id, 3, filler());
  EXPECT_EQ(cache.next_rotary(id), 10);
  ASSERT_TRUE(cache.reserve(id, 2));
  EXPECT_THROW(cache.set_next_rotary(id, 5), Error);
  cache.rollback(id);
  std::vector<uint8_t> keep(33, 1);
  for (const std::size_t i : {2, 11, 12, 29}) keep[i] = 0;
  cache.keep(id, 1, 2, keep);
  const SequenceId copy = cache.fork(id);
  EXPECT_EQ(cache.next_rotary(copy), 10);
  for (const SequenceId sequence : {id, copy}) {
    const BlockTable& row = cache.row(sequence, 1, 2);
    ASSERT_EQ(row.length, 29);
    for (int64_t i = 0; i < row.length; ++i) {
      const int32_t position = cache.positions().const_data_ptr<int32_t>()[row.slot(i)];
      EXPECT_EQ(cache.rotary_positions().const_data_ptr<int32_t>()[row.slot(i)],
                position < 30 ? position : position - 30 + 7);
    }
  }
}

TEST(KvCache, positions_end_with_int32) {
  KvCache cache(tiny());
  const SequenceId id = cache.add_sequence();
  feed(cache, id, 1, filler());
  EXPECT_THROW((void)cache.reserve(id, std::numeric_limits<int32_t>::max()), Error);
  EXPECT_THROW((void)cache.reserve(id, std::numeric_limits<int64_t>::max()), Error);
}

int64_t resident_pages(const at::Tensor& pool) {
  std::vector<unsigned char> pages((pool.nbytes() + 4095) / 4096);
  if (::mincore(pool.mutable_data_ptr(), pool.nbytes(), pages.data()) != 0) return -1;
  return std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; });
}

TEST(KvCache, freed_memory_goes_back_to_the_system) {
  CacheConfig config = tiny(20000);
  config.head_dim = 64;
  KvCache cache(config);
  EXPECT_EQ(resident_pages(cache.keys()), 0);
  const SequenceId small = cache.add_sequence();
  feed(cache, small, 3, filler());
  const SequenceId large = cache.add_sequence();
  feed(cache, large, 2000, filler());
  EXPECT_GE(resident_pages(cache.keys()), 2000 / 16 * 6);
  cache.remove_sequence(large);
  EXPECT_LE(resident_pages(cache.keys()), 7);
  EXPECT_LE(resident_pages(cache.positions()), 2);
  expect_content(cache, small, filler());
}

TEST(KvCache, resident_memory_is_there_from_the_start_and_stays) {
  CacheConfig config = tiny(20000);
  config.head_dim = 64;
  config.resident = true;
  KvCache cache(config);
  const auto all_there = [&cache] {
    for (const at::Tensor* pool : {&cache.keys(), &cache.values(), &cache.positions()})
      if (resident_pages(*pool) != static_cast<int64_t>((pool->nbytes() + 4095) / 4096))
        return false;
    return true;
  };
  EXPECT_TRUE(all_there());
  const SequenceId id = cache.add_sequence();
  feed(cache, id, 2000, filler());
  cache.remove_sequence(id);
  EXPECT_TRUE(all_there());
}

// Rows as plain lists of positions, against the cache, under random calls of every kind.
TEST(KvCache, random_calls_follow_a_plain_model) {
  struct Model {
    int64_t salt;
    int64_t seen = 0;
    std::vector<std::vector<int32_t>> rows = std::vector<std::vector<int32_t>>(6);
  };
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    Rng rng(11);
    KvCache cache(tiny(60, dtype));
    std::map<SequenceId, Model> models;
    int64_t refused = 0;
    for (int step = 0; step < 600; ++step) {
      const uint64_t action = rng.below(10);
      if (models.empty() || (action == 0 && models.size() < 4)) {
        models[cache.add_sequence()] = {.salt = step};
      } else {
        auto it = std::next(models.begin(), static_cast<int64_t>(rng.below(models.size())));
        auto& [id, model] = *it;
        if (action == 1) {
          cache.remove_sequence(id);
          models.erase(it);
        } else if (action == 2 && models.size() < 4) {
          try {
            models[cache.fork(id)] = Model(model);
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kCapacity);
            ++refused;
          }
        } else if (action < 7) {
          const auto tokens = static_cast<int64_t>(1 + rng.below(25));
          if (!cache.reserve(id, tokens)) {
            ++refused;
          } else if (rng.below(4) == 0) {
            if (rng.below(2) == 0) append_layer(cache, id, 1, filler(999));
            cache.rollback(id);
          } else {
            append_all(cache, id, filler(model.salt));
            cache.commit(id);
            for (auto& row : model.rows)
              for (int64_t t = 0; t < tokens; ++t)
                row.push_back(static_cast<int32_t>(model.seen + t));
            model.seen += tokens;
          }
        } else {
          const auto r = rng.below(6);
          auto& row = model.rows[r];
          const auto layer = static_cast<int64_t>(r / 3), head = static_cast<int64_t>(r % 3);
          const auto order = cache.read_row(id, layer, head).positions;
          std::vector<uint8_t> keep;
          const uint64_t odds = 1 + rng.below(4);
          for (const int32_t position : order) {
            keep.push_back(rng.below(4) < odds ? 1 : 0);
            if (keep.back() == 0) std::erase(row, position);
          }
          cache.keep(id, layer, head, keep);
        }
      }
      testing::poison_free_slots(cache);
      expect_clean(cache);
      ASSERT_LE(cache.bytes_in_use(), cache.bytes_bound());
      for (const auto& [id, model] : models) {
        ASSERT_EQ(cache.tokens_seen(id), model.seen);
        for (std::size_t r = 0; r < 6; ++r)
          ASSERT_EQ(testing::sorted_positions(cache, id, static_cast<int64_t>(r / 3),
                                              static_cast<int64_t>(r % 3)),
                    model.rows[r]);
        if (step % 20 == 0) expect_content(cache, id, filler(model.salt));
      }
      if (HasFatalFailure() || HasNonfatalFailure()) FAIL() << "step " << step;
    }
    EXPECT_GT(refused, 0);
    for (const auto& [id, model] : models) cache.remove_sequence(id);
    EXPECT_EQ(cache.blocks_in_use(), 0);
    expect_clean(cache);
  }
}

}  // namespace
}  // namespace coppice
