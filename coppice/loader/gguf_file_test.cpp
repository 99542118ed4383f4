#include "coppice/loader/gguf_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdint>

#include "coppice/core/error.h"
#include "coppice/loader/checkpoint.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/scratch_folder.h"

namespace coppice {
namespace {

using testing::ByteWriter;
using testing::GgufBuilder;
using testing::ScratchFolder;

GgufFile parse(const std::string& bytes) {
  // A buffer of exactly this size, so that the sanitizer sees one byte too many.
  auto owner = std::make_shared<std::vector<std::byte>>(
      reinterpret_cast<const std::byte*>(bytes.data()),
      reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size());
  const std::span<const std::byte> view(*owner);
  return GgufFile::parse(view, owner, "test.gguf");
}

// The message of the refusal; fails the test when there is none.
std::string refusal(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  ADD_FAILURE() << "the file was accepted";
  return "";
}

#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

GgufBuilder sound(uint32_t version = 3) {
  return GgufBuilder(version)
      .set_string("general.architecture", "llama")
      .set_u32("a.u32", 7)
      .set_f32("a.f32", 0.5f)
      .set_bool("a.bool", true)
      .set_strings("a.strings", {"x", "", "long text"})
      .set_i32s("a.ints", {1, -2, 3})
      .entry("a.u64", 10, ByteWriter().put(UINT64_MAX).bytes())
      .tensor("first", {2, 3}, {1, 2, 3, 4, 5, 6})
      .tensor("packed", {2, 32}, 8, std::string(68, '\x01'));
}

TEST(Gguf, reads_metadata_and_tensors_of_both_versions) {
  for (const uint32_t version : {2u, 3u}) {
    const GgufFile file = parse(sound(version).bytes());
    EXPECT_EQ(file.version(), version);
    EXPECT_EQ(file.find_string("general.architecture"), "llama");
    EXPECT_EQ(file.find_int("a.u32"), 7);
    EXPECT_EQ(file.find_float("a.f32"), 0.5);
    EXPECT_EQ(file.find_float("a.u32"), 7.0);
    EXPECT_EQ(file.find_bool("a.bool"), true);
    EXPECT_EQ(file.find_strings("a.strings")->at(2), "long text");
    EXPECT_EQ(*file.find_ints("a.ints"), (std::vector<int64_t>{1, -2, 3}));
    EXPECT_EQ(file.find_string("absent"), std::nullopt);
    const StoredTensor* first = file.find_tensor("first");
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(first->shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(first->type, StorageType::kF32);
    EXPECT_EQ(first->bytes.size(), 24u);
    const StoredTensor* packed = file.find_tensor("packed");
    ASSERT_NE(packed, nullptr);
    EXPECT_EQ(packed->type, StorageType::kQ8_0);
    EXPECT_EQ(static_cast<int>(packed->bytes[67]), 1);
  }
}

TEST(Gguf, a_value_of_another_type_is_told) {
  const GgufFile file = parse(sound().bytes());
  EXPECT_THROW(file.find_int("a.f32"), Error);
  EXPECT_THROW(file.find_int("a.bool"), Error);
  EXPECT_THROW(file.find_int("a.ints"), Error);
  EXPECT_THROW(file.find_int("a.u64"), Error);
  EXPECT_THROW(file.find_string("a.u32"), Error);
  EXPECT_THROW(file.find_strings("a.ints"), Error);
  EXPECT_THROW(file.find_ints("a.strings"), Error);
  EXPECT_THROW(file.get_int("absent"), Error);
}

TEST(Gguf, L01_a_file_cut_anywhere_is_refused) {
  const std::string whole = sound().bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) refusal(whole.substr(0, size));
  EXPECT_MENTIONS(refusal(whole.substr(0, whole.size() - 1)), "packed");
  EXPECT_MENTIONS(refusal(whole.substr(0, 30)), "metadata entries");
  const ScratchFolder folder;
  EXPECT_THROW(GgufFile::open(folder.write("empty.gguf", "")), Error);
}

TEST(Gguf, L02_offsets_that_wrap_or_pass_the_end_are_refused) {
  const auto at = [](uint64_t offset) {
    return GgufBuilder().raw_tensor("t", {16}, 0, offset).raw_data(std::string(64, 'x')).bytes();
  };
  EXPECT_NO_THROW(parse(at(0)));
  EXPECT_MENTIONS(refusal(at(UINT64_MAX - 31)), "tensor t");
  EXPECT_MENTIONS(refusal(at(32)), "tensor t");
  EXPECT_MENTIONS(refusal(at(uint64_t{1} << 40)), "tensor t");
}

TEST(Gguf, L03_a_zero_dimension_and_an_empty_key_are_refused) {
  EXPECT_MENTIONS(refusal(GgufBuilder().raw_tensor("t", {32, 0}, 0, 0).bytes()), "dimension of 0");
  EXPECT_MENTIONS(refusal(GgufBuilder().set_u32("", 1).bytes()), "key is empty");
  EXPECT_MENTIONS(refusal(GgufBuilder().raw_tensor("", {32}, 0, 0).bytes()), "name is empty");
}

TEST(Gguf, L04_alignments_other_than_sane_powers_of_two_are_refused) {
  const auto with = [](uint32_t type, std::string_view value) {
    return GgufBuilder().entry("general.alignment", type, value).align(0).bytes();
  };
  for (const uint32_t bad : {0u, 3u, 1u << 31, 4u, 131072u}) {
    EXPECT_MENTIONS(refusal(with(4, ByteWriter().put(bad).bytes())), "power of two");
  }
  EXPECT_MENTIONS(refusal(with(5, ByteWriter().put<int32_t>(32).bytes())), "uint32");
  EXPECT_MENTIONS(refusal(with(8, ByteWriter().text("32").bytes())), "uint32");
  for (const uint32_t good : {32u, 64u}) {
    const GgufFile file = parse(GgufBuilder()
                                    .set_u32("general.alignment", good)
                                    .align(good)
                                    .tensor("a", {1}, {1.0f})
                                    .tensor("b", {1}, {2.0f})
                                    .bytes());
    EXPECT_EQ(file.tensors()[1].bytes.data() - file.tensors()[0].bytes.data(), good);
  }
}

TEST(Gguf, L05_sizes_whose_product_wraps_are_refused) {
  const uint64_t big = (uint64_t{1} << 42) + 1;
  EXPECT_MENTIONS(refusal(GgufBuilder().raw_tensor("t", {1152, big}, 0, 0).bytes()), "tensor t");
  EXPECT_MENTIONS(refusal(GgufBuilder().raw_tensor("t", {1152, big, big, 4}, 0, 0).bytes()),
                  "larger than any file");
  const std::string two = GgufBuilder()
                              .raw_tensor("big", {(uint64_t{1} << 62) - 1}, 0, 0)
                              .raw_tensor("small", {4}, 0, 0)
                              .raw_data(std::string(64, 'x'))
                              .bytes();
  EXPECT_MENTIONS(refusal(two), "tensor big");
}

TEST(Gguf, L06_too_many_dimensions_are_refused) {
  EXPECT_MENTIONS(refusal(GgufBuilder().raw_tensor("t", {1, 1, 1, 1, 1}, 0, 0).bytes()),
                  "5 dimensions");
  const std::vector<uint64_t> nine(9, 1);
  EXPECT_MENTIONS(refusal(GgufBuilder().raw_tensor("t", nine, 0, 0).bytes()), "9 dimensions");
  ByteWriter file;
  file.raw("GGUF").put<uint32_t>(3).put<uint64_t>(1).put<uint64_t>(0);
  file.text("t").put(UINT32_MAX).raw(std::string(64, '\0'));
  EXPECT_MENTIONS(refusal(file.bytes()), "4294967295 dimensions");
}

TEST(Gguf, L07_claims_of_2_to_the_63_cost_neither_time_nor_memory) {
  const uint64_t huge = uint64_t{1} << 63;
  const auto header = [](uint64_t tensors, uint64_t entries) {
    return ByteWriter().raw("GGUF").put<uint32_t>(3).put(tensors).put(entries);
  };
  const std::string tail(64, '\0');
  std::vector<std::string> files;
  files.push_back(header(huge, 0).raw(tail).bytes());
  files.push_back(header(0, huge).raw(tail).bytes());
  files.push_back(header(0, 1).put(huge).raw(tail).bytes());                             // key
  files.push_back(header(1, 0).put(huge).raw(tail).bytes());                             // name
  files.push_back(header(0, 1).text("k").put<uint32_t>(8).put(huge).raw(tail).bytes());  // string
  for (const uint32_t type : {0u, 8u, 12u}) {
    files.push_back(header(0, 1).text("k").put<uint32_t>(9).put(type).put(huge).raw(tail).bytes());
  }
  ByteWriter nested = header(0, 1).text("k").put<uint32_t>(9);
  for (int i = 0; i < 100000; ++i) nested.put<uint32_t>(9).put<uint64_t>(1);
  files.push_back(nested.bytes());

  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& file : files) refusal(file);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(took.count(), 1.0);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 * 1024);
}

TEST(Gguf, L08_shapes_larger_than_their_data_are_refused) {
  EXPECT_MENTIONS(refusal(GgufBuilder()
                              .raw_tensor("t", {4096, 4096}, 8, 0)
                              .raw_data(std::string(1024, 'x'))
                              .bytes()),
                  "cut off or damaged");
  EXPECT_MENTIONS(
      refusal(GgufBuilder().raw_tensor("t", {64}, 8, 0).raw_data(std::string(34, 'x')).bytes()),
      "tensor t");
}

TEST(Gguf, overlapping_misaligned_and_repeated_tensors_are_refused) {
  const std::string data(128, 'x');
  const auto two = [&](uint64_t second) {
    return GgufBuilder().raw_tensor("a", {16}, 0, 0).raw_tensor("b", {8}, 0, second).raw_data(data);
  };
  EXPECT_NO_THROW(parse(two(64).bytes()));
  EXPECT_MENTIONS(refusal(two(32).bytes()), "overlap");
  EXPECT_MENTIONS(refusal(two(0).bytes()), "overlap");
  EXPECT_MENTIONS(refusal(two(72).bytes()), "alignment");
  EXPECT_MENTIONS(refusal(GgufBuilder().tensor("a", {1}, {1}).tensor("a", {1}, {1}).bytes()),
                  "twice");
  EXPECT_MENTIONS(refusal(GgufBuilder().set_u32("k", 1).set_u32("k", 1).bytes()), "twice");
}

TEST(Gguf, foreign_files_versions_and_types_are_named) {
  EXPECT_MENTIONS(refusal("PK\x03\x04 not a model at all"), "not a GGUF file");
  EXPECT_MENTIONS(refusal(GgufBuilder(1).bytes()), "version 1");
  EXPECT_MENTIONS(refusal(GgufBuilder(4).bytes()), "version 4");
  EXPECT_MENTIONS(refusal(GgufBuilder(0x03000000).bytes()), "big-endian");
  EXPECT_MENTIONS(refusal(GgufBuilder().raw_tensor("t", {256}, 23, 0).bytes()), "type number 23");
  EXPECT_MENTIONS(refusal(GgufBuilder().raw_tensor("t", {100}, 12, 0).bytes()), "multiple of 256");
  EXPECT_MENTIONS(refusal(GgufBuilder().entry("k", 13, "xxxx").bytes()), "value type 13");
  EXPECT_MENTIONS(refusal(GgufBuilder().entry("k", 7, "\x02").bytes()), "neither 0 nor 1");
  EXPECT_MENTIONS(refusal(GgufBuilder().set_u32("split.count", 2).bytes()), "parts");
}

TEST(Gguf, L21_an_architecture_that_is_not_supported_is_said_to_be) {
  const ScratchFolder folder;
  const std::string path = folder.write(
      "moe.gguf", GgufBuilder().set_string("general.architecture", "qwen3moe").bytes());
  try {
    Checkpoint::open(path);
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_MENTIONS(text, "\"qwen3moe\" is not supported");
    EXPECT_MENTIONS(text, "llama, qwen2, qwen3");
  }
}

}  // namespace
}  // namespace coppice
