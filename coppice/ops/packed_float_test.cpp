#include "coppice/ops/packed_float.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace coppice::ops {
namespace {

TEST(PackedFloat, HalvesRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = half_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value))));
    } else {
      ASSERT_EQ(float_to_half(value), bits);
    }
  }
  EXPECT_EQ(float_to_half(65519.9f), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_half(1.0f + 0x1.0p-11f), 0x3c00);  // a tie goes to even
  EXPECT_EQ(float_to_half(1.0f + 0x1.8p-10f), 0x3c02);
  EXPECT_EQ(float_to_half(0x1.0p-25f), 0);
  EXPECT_EQ(float_to_half(0x1.8p-25f), 1);
  EXPECT_EQ(float_to_bf16(1.0f + 0x1.0p-8f), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.0f + 0x1.8p-7f), 0x3f82);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace coppice::ops
