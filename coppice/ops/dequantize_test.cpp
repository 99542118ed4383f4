#include "coppice/ops/dequantize.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"

namespace coppice::ops {
namespace {

struct GoldenCase {
  std::string name;
  StoredTensor tensor;
  std::vector<float> values;
};

// Reads the file that tools/make_quant_golden.py describes.
std::vector<GoldenCase> read_golden() {
  const MappedFile file = MappedFile::open(COPPICE_SOURCE_DIR "/tests/golden/quant_golden.bin");
  std::span<const std::byte> rest = file.bytes();
  std::vector<GoldenCase> cases;
  while (!rest.empty()) {
    GoldenCase one;
    one.name = reinterpret_cast<const char*>(rest.data());
    uint32_t sizes[3];
    std::memcpy(sizes, rest.data() + 16, sizeof(sizes));
    const std::size_t packed = std::size_t{sizes[0]} * sizes[2];
    one.tensor.name = one.name;
    one.tensor.type = static_cast<StorageType>(cases.size());
    one.tensor.shape = {sizes[0], sizes[1]};
    one.tensor.bytes = rest.subspan(28, packed);
    one.tensor.owner = file.owner();
    one.values.resize(std::size_t{sizes[0]} * sizes[1]);
    std::memcpy(one.values.data(), rest.data() + 28 + packed, one.values.size() * sizeof(float));
    rest = rest.subspan(28 + packed + one.values.size() * sizeof(float));
    cases.push_back(std::move(one));
  }
  return cases;
}

TEST(Dequantize, equals_the_reference_bit_for_bit_for_every_type) {
  const std::vector<GoldenCase> cases = read_golden();
  ASSERT_EQ(cases.size(), 14u);
  for (const GoldenCase& one : cases) {
    SCOPED_TRACE(one.name);
    EXPECT_EQ(storage_traits(one.tensor.type).name, one.name);
    const at::Tensor got = dequantize(one.tensor);
    ASSERT_EQ(got.sizes(), at::IntArrayRef(one.tensor.shape));
    ASSERT_EQ(got.scalar_type(), at::kFloat);
    const float* values = got.const_data_ptr<float>();
    for (std::size_t i = 0; i < one.values.size(); ++i) {
      ASSERT_EQ(std::memcmp(&values[i], &one.values[i], sizeof(float)), 0)
          << "value " << i << ": got " << values[i] << ", expected " << one.values[i];
    }
  }
}

TEST(Dequantize, needs_no_alignment_of_the_bytes) {
  for (const GoldenCase& one : read_golden()) {
    SCOPED_TRACE(one.name);
    std::vector<std::byte> shifted(one.tensor.bytes.size() + 1);
    std::memcpy(shifted.data() + 1, one.tensor.bytes.data(), one.tensor.bytes.size());
    std::vector<float> got(one.values.size());
    dequantize_row(one.tensor.type, std::span(shifted).subspan(1), got);
    EXPECT_EQ(std::memcmp(got.data(), one.values.data(), got.size() * sizeof(float)), 0);
  }
}

TEST(Dequantize, refuses_sizes_that_do_not_fit) {
  std::vector<std::byte> bytes(36);
  std::vector<float> out(64);
  EXPECT_NO_THROW(dequantize_row(StorageType::kQ4_0, bytes, out));
  EXPECT_THROW(dequantize_row(StorageType::kQ4_0, std::span(bytes).first(35), out), Error);
  EXPECT_THROW(dequantize_row(StorageType::kQ4_0, bytes, std::span(out).first(33)), Error);
  EXPECT_THROW(dequantize_row(StorageType::kQ4_0, bytes, std::span(out).first(32)), Error);
  EXPECT_NO_THROW(dequantize_row(StorageType::kF32, {}, {}));
}

TEST(Dequantize, L08_a_shape_larger_than_the_data_is_refused) {
  std::vector<std::byte> bytes(1024);
  StoredTensor tensor;
  tensor.name = "w";
  tensor.type = StorageType::kQ8_0;
  tensor.shape = {4096, 4096};
  tensor.bytes = bytes;
  EXPECT_THROW(dequantize(tensor), Error);
  tensor.shape = {int64_t{1} << 60, 4096};
  EXPECT_THROW(dequantize(tensor), Error);
}

}  // namespace
}  // namespace coppice::ops
