#include "coppice/ops/packed_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"

namespace coppice::ops {
namespace {

TEST(PackedMemory, PiecesAreApartAndReturned) {
  std::vector<std::pair<std::shared_ptr<uint8_t>, int64_t>> held;
  Rng rng(53);
  for (int round = 0; round < 60; ++round) {
    const int64_t size = 1 + static_cast<int64_t>(rng.below(round % 10 == 0 ? 20000000 : 3000000));
    held.emplace_back(allocate_packed(size), size);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(held.back().first.get()) % 64, 0u);
    held.back().first.get()[0] = static_cast<uint8_t>(round);
    held.back().first.get()[size - 1] = static_cast<uint8_t>(round);
    if (held.size() > 8) held.erase(held.begin() + static_cast<long>(rng.below(8)));
  }
  for (const auto& [memory, size] : held) {
    EXPECT_EQ(memory.get()[0], memory.get()[size - 1]);
  }
  EXPECT_THROW(allocate_packed(int64_t{1} << 60), Error);
}

}  // namespace
}  // namespace coppice::ops
