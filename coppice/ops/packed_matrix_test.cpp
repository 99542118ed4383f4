#include "coppice/ops/packed_matrix.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/ops/cpu_features.h"
#include "coppice/ops/dequantize.h"
#include "coppice/ops/packed_codes.h"
#include "coppice/ops/packed_testing.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

// Rounding of a stored value on its way through the packed form.
float storage_tolerance(StorageType type, float value, float largest) {
  switch (type) {
    case StorageType::kF32:
    case StorageType::kF16:
      return std::fabs(value) * 0x1.0p-8f;
    case StorageType::kBF16:
      return 0.0f;
    default:
      break;
  }
  // K types round scale and minimum to 11 bits, each of which a value may exceed by cancellation.
  const bool k_type = storage_traits(type).block_values == 256;
  return largest * (k_type ? 0x1.0p-11f : 0x1.0p-22f);
}

TEST(PackedMatrix, HoldsWhatTheFileHolds) {
  for (const StorageType type : kAllTypes) {
    SCOPED_TRACE(std::string(storage_traits(type).name));
    const int64_t cols = std::max<int64_t>(storage_traits(type).block_values * 3, 70);
    for (const int64_t rows : {1, 15, 16, 17, 50}) {
      const RandomTensor random(type, rows, cols - cols % storage_traits(type).block_values, 7);
      const PackedMatrix packed = PackedMatrix::pack(random.stored);
      const at::Tensor expected = dequantize(random.stored);
      const at::Tensor got = packed.dequantize();
      ASSERT_EQ(got.sizes(), expected.sizes());
      const float largest = largest_magnitude(expected);
      ASSERT_GT(largest, 0.0f);
      const float* e = expected.const_data_ptr<float>();
      const float* g = got.const_data_ptr<float>();
      for (int64_t i = 0; i < got.numel(); ++i) {
        ASSERT_NEAR(g[i], e[i], storage_tolerance(type, e[i], largest)) << "at " << i;
      }
      EXPECT_EQ(packed.form(), packed_form(type));
      EXPECT_EQ(packed.bytes(), packed_bytes(type, rows, packed.cols()));
    }
  }
}

TEST(PackedMatrix, KeepsTinyAndHugeScales) {
  for (const StorageType type : {StorageType::kQ4_K, StorageType::kQ6_K, StorageType::kQ2_K,
                                 StorageType::kQ3_K, StorageType::kQ5_K}) {
    SCOPED_TRACE(std::string(storage_traits(type).name));
    for (const float size : {1e-6f, 4e4f}) {
      const RandomTensor random(type, 5, 512, 11, size);
      const at::Tensor expected = dequantize(random.stored);
      const at::Tensor got = PackedMatrix::pack(random.stored).dequantize();
      const float largest = largest_magnitude(expected);
      for (int64_t i = 0; i < got.numel(); ++i) {
        ASSERT_NEAR(got.const_data_ptr<float>()[i], expected.const_data_ptr<float>()[i],
                    largest * 0x1.0p-11f);
      }
    }
  }
}

// What the code kernels make of 32 values: the rounded values, and the step between two of them.
double round_group(const float* x, double* rounded) {
  float top = 0.0f;
  for (int k = 0; k < 32; ++k) top = std::max(top, std::fabs(x[k]));
  const float step = top / 32767.0f, inverse = 1.0f / step;
  for (int k = 0; k < 32; ++k) {
    rounded[k] = static_cast<double>(std::nearbyintf(x[k] * inverse)) * step;
  }
  return step;
}

// The product with x as the code kernels round it must match up to float32 rounding; the product
// with x itself, within half a step of each group's scale times the weights.
void check_product(const PackedMatrix& packed, const at::Tensor& x) {
  const int64_t n = x.size(0), rows = packed.rows(), cols = packed.cols();
  const at::Tensor weights = packed.dequantize();
  const at::Tensor got = packed.multiply(x);
  ASSERT_EQ(got.sizes(), (std::vector<int64_t>{n, rows}));
  const bool coded = packed.form() != WeightForm::kBf16;
  const float* w = weights.const_data_ptr<float>();
  for (int64_t i = 0; i < n; ++i) {
    const float* xi = x.const_data_ptr<float>() + i * cols;
    std::vector<double> x_rounded(xi, xi + cols);
    std::vector<double> step(static_cast<std::size_t>(cols), 0.0);
    for (int64_t c = 0; coded && c < cols; c += 32) {
      const double s = round_group(xi + c, x_rounded.data() + c);
      std::fill_n(step.begin() + c, 32, s);
    }
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0.0, rounded = 0.0, bound = 0.0, size = 0.0;
      for (int64_t k = 0; k < cols; ++k) {
        const auto at = static_cast<std::size_t>(k);
        const double v = w[r * cols + k];
        sum += v * xi[k];
        rounded += v * x_rounded[at];
        bound += std::fabs(v) * step[at] * 0.5;
        size += std::fabs(v * xi[k]);
      }
      const double value = got.const_data_ptr<float>()[i * rows + r];
      ASSERT_NEAR(value, rounded, size * 1e-6) << "row " << i << " output " << r;
      ASSERT_NEAR(value, sum, bound * 1.01 + size * 1e-6) << "row " << i << " output " << r;
    }
  }
}

TEST(PackedMatrix, MultipliesEveryTypeAtEveryLevel) {
  for (const StorageType type : kAllTypes) {
    SCOPED_TRACE(std::string(storage_traits(type).name));
    const int64_t cols = storage_traits(type).block_values == 256 ? 512 : 96;
    const RandomTensor random(type, 37, cols, 3);
    const PackedMatrix packed = PackedMatrix::pack(random.stored);
    at_every_level([&] {
      for (const int64_t n : {1, 2, 3, 7, 8, 9}) check_product(packed, random_rows(n, cols, 5));
    });
  }
}

TEST(PackedMatrix, MultipliesManyRows) {
  for (const StorageType type : {StorageType::kQ4_1, StorageType::kQ8_0, StorageType::kBF16}) {
    const RandomTensor random(type, 33, 64, 3);
    const PackedMatrix packed = PackedMatrix::pack(random.stored);
    at_every_level([&] {
      for (const int64_t n : {64, 200}) check_product(packed, random_rows(n, 64, 9));
    });
  }
  const RandomTensor wide(StorageType::kQ4_0, 3, 40000 / 32 * 32, 3);  // several chunks of x
  check_product(PackedMatrix::pack(wide.stored), random_rows(19, wide.stored.cols(), 9));
}

// Codes and x at the ends of their ranges, all of one sign: the largest whole-number sums.
TEST(PackedMatrix, LargestSumsStayExact) {
  for (const StorageType type :
       {StorageType::kQ8_0, StorageType::kQ4_0, StorageType::kQ4_1, StorageType::kQ5_1}) {
    SCOPED_TRACE(std::string(storage_traits(type).name));
    for (const int fill : {0x00, 0x7f, 0x80, 0xff}) {
      RandomTensor same(type, 17, 64, 3);
      const auto block = static_cast<std::size_t>(storage_traits(type).block_bytes);
      const std::size_t halves = half_offsets(type).size() * 2;
      for (std::size_t at = 0; at < same.bytes.size(); ++at) {
        if (at % block >= halves) same.bytes[at] = std::byte(fill);
      }
      const PackedMatrix packed = PackedMatrix::pack(same.stored);
      at_every_level([&] {
        for (const float value : {3.0f, -3.0f}) {
          at::Tensor x = at::empty({9, 64}, at::kFloat);
          check_product(packed, x.fill_(value));
        }
      });
    }
  }
}

TEST(PackedMatrix, PlainTypesTakeAnyColumns) {
  for (const StorageType type : {StorageType::kF32, StorageType::kF16, StorageType::kBF16}) {
    for (const int64_t cols : {1, 2, 31, 33, 127}) {
      const RandomTensor random(type, 18, cols, 3);
      const PackedMatrix packed = PackedMatrix::pack(random.stored);
      at_every_level([&] {
        for (const int64_t n : {1, 9}) check_product(packed, random_rows(n, cols, 9));
      });
    }
  }
}

TEST(PackedMatrix, LevelsAgree) {
  for (const StorageType type : kAllTypes) {
    SCOPED_TRACE(std::string(storage_traits(type).name));
    const RandomTensor random(type, 40, 512, 13);
    const PackedMatrix packed = PackedMatrix::pack(random.stored);
    const at::Tensor x = random_rows(5, 512, 17);
    std::vector<at::Tensor> results;
    at_every_level([&] { results.push_back(packed.multiply(x)); });
    const float largest = largest_magnitude(results.front());
    for (const at::Tensor& other : results) {
      for (int64_t i = 0; i < other.numel(); ++i) {
        ASSERT_NEAR(other.const_data_ptr<float>()[i], results[0].const_data_ptr<float>()[i],
                    largest * 2e-5f);
      }
    }
  }
}

TEST(PackedMatrix, RowsDoNotDependOnTheirBatch) {
  const int before = num_threads();
  for (const StorageType type : kAllTypes) {
    SCOPED_TRACE(std::string(storage_traits(type).name));
    const RandomTensor random(type, 70, 512, 19);
    const PackedMatrix packed = PackedMatrix::pack(random.stored);
    const at::Tensor x = random_rows(21, 512, 23);
    at_every_level([&] {
      const at::Tensor all = packed.multiply(x);
      for (const int threads : {1, 3}) {
        set_num_threads(threads);
        for (const int64_t size : {1, 2, 3, 4, 5, 6, 7, 8, 13}) {
          const at::Tensor part = packed.multiply(x.slice(0, 4, 4 + size));
          EXPECT_TRUE(at::equal(part, all.slice(0, 4, 4 + size))) << size;
        }
      }
      set_num_threads(before);
    });
  }
}

TEST(PackedMatrix, TogetherGivesTheSameBits) {
  const RandomTensor a(StorageType::kQ4_K, 40, 256, 1), b(StorageType::kQ6_K, 17, 256, 2),
      c(StorageType::kF16, 5, 256, 3);
  const PackedMatrix pa = PackedMatrix::pack(a.stored), pb = PackedMatrix::pack(b.stored),
                     pc = PackedMatrix::pack(c.stored);
  const PackedMatrix* all[] = {&pa, &pb, &pc};
  for (const int64_t n : {0, 1, 11}) {
    const at::Tensor x = random_rows(n, 256, 29);
    const std::vector<at::Tensor> results = PackedMatrix::multiply_together(all, x);
    ASSERT_EQ(results.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(results[i], all[i]->multiply(x)));
  }
  EXPECT_TRUE(PackedMatrix::multiply_together({}, random_rows(1, 256, 1)).empty());
}

TEST(PackedMatrix, NoRowsGiveNoRows) {
  const RandomTensor random(StorageType::kQ4_1, 20, 64, 1);
  const PackedMatrix packed = PackedMatrix::pack(random.stored);
  EXPECT_EQ(packed.multiply(at::empty({0, 64}, at::kFloat)).sizes(), (std::vector<int64_t>{0, 20}));
  EXPECT_EQ(packed.gather_rows(at::empty({0}, at::kLong)).sizes(), (std::vector<int64_t>{0, 64}));
}

TEST(PackedMatrix, GathersRows) {
  for (const StorageType type : kAllTypes) {
    SCOPED_TRACE(std::string(storage_traits(type).name));
    const RandomTensor random(type, 50, 256, 31);
    const PackedMatrix packed = PackedMatrix::pack(random.stored);
    const at::Tensor all = packed.dequantize();
    int64_t ids[] = {49, 0, 17, 16, 15, 17};
    const at::Tensor got = packed.gather_rows(at::from_blob(ids, {6}, at::kLong));
    for (int64_t i = 0; i < 6; ++i) EXPECT_TRUE(at::equal(got[i], all[ids[i]]));
    for (const int64_t bad : {int64_t{-1}, int64_t{50}, std::numeric_limits<int64_t>::min()}) {
      ids[2] = bad;
      EXPECT_THROW(packed.gather_rows(at::from_blob(ids, {6}, at::kLong)), Error);
    }
  }
}

TEST(PackedMatrix, NotANumberSpreadsToItsRowOnly) {
  for (const StorageType type : {StorageType::kQ4_1, StorageType::kQ4_0, StorageType::kQ6_K}) {
    const RandomTensor random(type, 20, 256, 37);
    const PackedMatrix packed = PackedMatrix::pack(random.stored);
    at_every_level([&] {
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        at::Tensor x = random_rows(3, 256, 41);
        const at::Tensor clean = packed.multiply(x);
        x.mutable_data_ptr<float>()[256 + 77] = bad;
        const at::Tensor got = packed.multiply(x);
        for (int64_t r = 0; r < 20; ++r) {
          EXPECT_TRUE(std::isnan(got.const_data_ptr<float>()[20 + r]));
        }
        EXPECT_TRUE(at::equal(got[0], clean[0]));
        EXPECT_TRUE(at::equal(got[2], clean[2]));
      }
    });
  }
}

TEST(PackedMatrix, ExtremeActivations) {
  const RandomTensor random(StorageType::kQ8_0, 20, 64, 43);
  const PackedMatrix packed = PackedMatrix::pack(random.stored);
  at_every_level([&] {
    for (const float value : {0.0f, 1e-38f, 1e30f}) {
      at::Tensor x = at::empty({2, 64}, at::kFloat);
      x.fill_(value);
      const at::Tensor got = packed.multiply(x);
      for (int64_t i = 0; i < got.numel(); ++i) {
        EXPECT_FALSE(std::isnan(got.const_data_ptr<float>()[i])) << value;
        EXPECT_TRUE(value > 1.0f || got.const_data_ptr<float>()[i] == 0.0f) << value;
      }
    }
  });
}

TEST(PackedMatrix, RefusesWhatDoesNotFit) {
  const RandomTensor good(StorageType::kQ4_1, 4, 64, 1);
  StoredTensor bad = good.stored;
  bad.shape = {4, 48};
  EXPECT_THROW(PackedMatrix::pack(bad), Error);
  bad.shape = {256};
  EXPECT_THROW(PackedMatrix::pack(bad), Error);
  bad.shape = {5, 64};
  EXPECT_THROW(PackedMatrix::pack(bad), Error);
  bad.shape = {0, 64};
  EXPECT_THROW(PackedMatrix::pack(bad), Error);
  bad.shape = {-4, -64};
  EXPECT_THROW(PackedMatrix::pack(bad), Error);
  bad.shape = {int64_t{1} << 62, 64};
  EXPECT_THROW(PackedMatrix::pack(bad), Error);
  bad = good.stored;
  bad.bytes = bad.bytes.first(bad.bytes.size() - 1);
  EXPECT_THROW(PackedMatrix::pack(bad), Error);
  const PackedMatrix packed = PackedMatrix::pack(good.stored);
  EXPECT_THROW(packed.multiply(at::empty({2, 32}, at::kFloat)), Error);
  EXPECT_THROW(packed.multiply(at::empty({64}, at::kFloat)), Error);
  EXPECT_THROW(packed.multiply(at::empty({2, 64}, at::kDouble)), Error);
  EXPECT_THROW(packed.gather_rows(at::empty({2}, at::kInt)), Error);
  EXPECT_THROW(packed_bytes(StorageType::kQ4_K, 4, 32), Error);
}

TEST(PackedMatrix, FourBitFormsStaySmall) {
  for (const StorageType type : {StorageType::kQ4_0, StorageType::kQ4_1, StorageType::kQ4_K}) {
    const double bits = static_cast<double>(packed_bytes(type, 1536, 512)) * 8 / (1536 * 512);
    EXPECT_LE(bits, 5.01);
  }
}

// Bits of every kind, scales that are infinite or no number at all: any result, no crash.
TEST(PackedMatrix, AnyBytesAreSafe) {
  Rng rng(47);
  for (const StorageType type : kAllTypes) {
    RandomTensor random(type, 19, 256, 47);
    for (std::byte& b : random.bytes) b = std::byte(rng.below(4) == 0 ? 0xff : rng.below(256));
    const PackedMatrix packed = PackedMatrix::pack(random.stored);
    at_every_level([&] { packed.multiply(random_rows(3, 256, 1)); });
    packed.dequantize();
  }
}

}  // namespace
}  // namespace coppice::ops
