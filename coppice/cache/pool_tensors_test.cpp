#include "coppice/cache/pool_tensors.h"

#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

namespace coppice {
namespace {

CacheConfig sizes(at::ScalarType dtype) {
  return {.num_layers = 2, .num_kv_heads = 3, .head_dim = 8, .dtype = dtype, .max_blocks = 8};
}

TEST(PoolTensors, reference_paths_equal_the_fast_ones) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    CacheConfig config = sizes(dtype);
    config.rotary_positions = true;
    PoolTensors fast = allocate_pools(config), slow = allocate_pools(config);
    std::vector<BlockTable> rows(3);
    rows[0] = {.blocks = {3, 1}, .length = 5};
    rows[1] = {.blocks = {0, 7}, .length = 14};
    rows[2] = {.blocks = {4, 2}, .length = 0};
    NewEntries entries{.k = at::randn({18, 3, 8}),
                       .v = at::randn({18, 3, 8}),
                       .log_beta = -at::randn({18, 3}).abs(),
                       .modality = at::randn({18}).gt(0).to(at::kByte),
                       .first_position = 100,
                       .first_rotary = 40};
    const std::vector<SlotMove> moves = {{16 + 3, 48 + 5}, {7 * 16, 14}, {2 * 16 + 1, 4 * 16}};
    write_entries(fast, rows, entries);
    write_entries_reference(slow, rows, entries);
    move_entries(fast, moves);
    move_entries_reference(slow, moves);
    EXPECT_TRUE(fast.keys.equal(slow.keys));
    EXPECT_TRUE(fast.values.equal(slow.values));
    EXPECT_TRUE(fast.positions.equal(slow.positions));
    EXPECT_TRUE(fast.log_betas.equal(slow.log_betas));
    EXPECT_TRUE(fast.aux.equal(slow.aux));
    EXPECT_TRUE(fast.modalities.equal(slow.modalities));
    EXPECT_TRUE(fast.rotary.equal(slow.rotary));
  }
}

TEST(PoolTensors, read_keys_gives_floats_in_row_order) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    PoolTensors pools = allocate_pools(sizes(dtype));
    BlockTable rows[3];
    for (int32_t h = 0; h < 3; ++h) rows[h].blocks = {h * 2 + 1, h * 2};
    const at::Tensor k = at::randn({20, 3, 8}).to(dtype);
    write_entries(pools, rows, {.k = k, .v = k, .log_beta = {}, .modality = {}});
    at::Tensor keys = at::randn({7, 8});
    read_keys(pools, rows[1], 12, 7, keys.mutable_data_ptr<float>());
    EXPECT_TRUE(keys.equal(k.select(1, 1).narrow(0, 12, 7).to(at::kFloat)));
  }
}

}  // namespace
}  // namespace coppice
