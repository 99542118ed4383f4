// Renumbering rows that hold pictures: what is left of one moves together.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <vector>

#include "coppice/attention/compact_positions.h"
#include "coppice/ops/rope.h"

namespace coppice {
namespace {

constexpr int64_t kDim = 12;

ops::RopeTable table() {
  return ops::RopeTable(ops::rope_frequencies(10000.0, kDim), {0, 1, 2, 0, 1, 2});
}

struct Place {
  int64_t time, down, across;  // the last two beside the first
};

// Three tokens of text, a picture of 2 x 3, text again.
Place place_of(int64_t token) {
  if (token < 3) return {token, 0, 0};
  if (token < 9) return {3, (token - 3) / 3, (token - 3) % 3};
  return {token - 3, 0, 0};
}

const std::vector<RotaryGroup> kPicture = {{3, 9, 3}};

at::Tensor rotated(const at::Tensor& raw, const std::vector<Place>& places) {
  at::Tensor positions = torch::empty({3, static_cast<int64_t>(places.size())}, torch::kLong);
  for (std::size_t i = 0; i < places.size(); ++i) {
    positions[0][static_cast<int64_t>(i)] = places[i].time;
    positions[1][static_cast<int64_t>(i)] = places[i].time + places[i].down;
    positions[2][static_cast<int64_t>(i)] = places[i].time + places[i].across;
  }
  return ops::apply_rope_reference(raw, table().angles(positions, torch::kFloat));
}

// A cache of one row that has read `tokens` of them and kept `kept`.
struct Stream {
  KvCache cache;
  SequenceId id;
  at::Tensor raw;

  static CacheConfig config() {
    CacheConfig config;
    config.num_layers = config.num_kv_heads = 1;
    config.head_dim = kDim;
    config.max_blocks = 8;
    config.rotary_positions = true;
    return config;
  }

  Stream(int64_t tokens, const std::vector<int32_t>& kept, int64_t next)
      : cache(config()), id(cache.add_sequence()), raw(torch::randn({tokens, 1, kDim})) {
    std::vector<Place> places;
    std::vector<int32_t> time;
    for (int64_t t = 0; t < tokens; ++t) {
      places.push_back(place_of(t));
      time.push_back(static_cast<int32_t>(places.back().time));
    }
    EXPECT_TRUE(cache.reserve(id, tokens));
    cache.set_pass_rotary(id, time, next);
    EXPECT_EQ(cache.rotary_after_pass(id), next);
    cache.append(0, id, rotated(raw, places), raw, {}, {});
    cache.commit(id);
    EXPECT_EQ(cache.next_rotary(id), next);
    std::vector<uint8_t> keep(static_cast<std::size_t>(tokens), 0);
    for (const int32_t token : kept) keep[static_cast<std::size_t>(token)] = 1;
    cache.keep(id, 0, 0, keep);
  }

  // Position -> rotary position; and checks that each key is its raw key rotated to there.
  std::map<int32_t, int32_t> rotary() {
    std::map<int32_t, int32_t> result;
    const KvCache::RowContent row = cache.read_row(id, 0, 0);
    const BlockTable& blocks = cache.row(id, 0, 0);
    for (int64_t e = 0; e < blocks.length; ++e) {
      const int32_t token = row.positions[static_cast<std::size_t>(e)];
      const auto at =
          cache.rotary_positions()[blocks.blocks[static_cast<std::size_t>(e / 16)]][e % 16]
              .item<int32_t>();
      result[token] = at;
      Place place = place_of(token);
      place.time = at;
      const at::Tensor fresh = rotated(raw.narrow(0, token, 1), {place}).flatten();
      EXPECT_LE((row.k[e] - fresh).abs().max().item<double>(), 1e-5) << token;
    }
    return result;
  }
};

TEST(CompactPictures, what_is_left_of_a_picture_moves_together) {
  torch::manual_seed(1);
  Stream stream(13, {0, 2, 4, 7, 10, 12}, 10);
  EXPECT_EQ(stream.rotary(),
            (std::map<int32_t, int32_t>{{0, 0}, {2, 2}, {4, 3}, {7, 3}, {10, 7}, {12, 9}}));
  compact_positions(stream.cache, stream.id, table().inv_freq(), 20, kPicture);
  EXPECT_EQ(stream.rotary(),
            (std::map<int32_t, int32_t>{{0, 0}, {2, 1}, {4, 2}, {7, 2}, {10, 5}, {12, 6}}));
  EXPECT_EQ(stream.cache.next_rotary(stream.id), 7);
}

TEST(CompactPictures, one_that_is_being_read_goes_on_where_it_began) {
  torch::manual_seed(2);
  Stream stream(6, {0, 3, 5}, 3);
  compact_positions(stream.cache, stream.id, table().inv_freq(), 20, kPicture);
  EXPECT_EQ(stream.rotary(), (std::map<int32_t, int32_t>{{0, 0}, {3, 1}, {5, 1}}));
  EXPECT_EQ(stream.cache.next_rotary(stream.id), 1);
}

TEST(CompactPictures, what_does_not_fit_stands_at_the_beginning) {
  torch::manual_seed(3);
  Stream stream(13, {0, 2, 4, 7, 10, 12}, 10);
  compact_positions(stream.cache, stream.id, table().inv_freq(), 6, kPicture);
  EXPECT_EQ(stream.rotary(),
            (std::map<int32_t, int32_t>{{0, 0}, {2, 0}, {4, 0}, {7, 0}, {10, 1}, {12, 2}}));
  EXPECT_EQ(stream.cache.next_rotary(stream.id), 3);
}

}  // namespace
}  // namespace coppice
