#include "coppice/ops/encode_q8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/ops/packed_matrix.h"

namespace coppice::ops {
namespace {

TEST(EncodeQ8, values_come_back_within_half_a_code) {
  Rng rng(1);
  std::vector<float> values(5 * 96);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(rng.uniform() - 0.5) * (i % 64 < 32 ? 1.0f : 1e-3f);
  const std::vector<std::byte> bytes = encode_q8(values.data(), 5, 96);
  StoredTensor stored;
  stored.type = StorageType::kQ8_0;
  stored.shape = {5, 96};
  stored.bytes = bytes;
  const at::Tensor back = PackedMatrix::pack(stored).dequantize();
  for (std::size_t group = 0; group < values.size(); group += 32) {
    float largest = 0;
    for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::abs(values[group + i]));
    for (std::size_t i = group; i < group + 32; ++i)
      EXPECT_NEAR(back.const_data_ptr<float>()[i], values[i],
                  0.5001 * (largest / 127 * (1 + 1 / 1024.0) + 0x1p-24));
  }
}

TEST(EncodeQ8, zeros_and_what_does_not_fit) {
  std::vector<float> values(32, 0.0f);
  for (const std::byte b : encode_q8(values.data(), 1, 32)) EXPECT_EQ(b, std::byte{0});
  EXPECT_THROW(encode_q8(values.data(), 1, 31), Error);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), 1e9f}) {
    values[5] = bad;
    EXPECT_THROW(encode_q8(values.data(), 1, 32), Error);
  }
}

}  // namespace
}  // namespace coppice::ops
