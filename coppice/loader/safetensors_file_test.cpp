#include "coppice/loader/safetensors_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/loader/sharded.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/scratch_folder.h"

namespace coppice {
namespace {

using testing::ByteWriter;
using testing::ScratchFolder;

#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

std::string file_of(std::string_view header, std::string_view data = "") {
  return ByteWriter().text(header).raw(data).bytes();
}

SafetensorsFile parse(const std::string& bytes) {
  auto owner = std::make_shared<std::vector<std::byte>>(
      reinterpret_cast<const std::byte*>(bytes.data()),
      reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size());
  const std::span<const std::byte> view(*owner);
  return SafetensorsFile::parse(view, owner, "test.safetensors");
}

template <typename Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::kInternal);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}
std::string refusal(const std::string& bytes) {
  return refusal_of([&] { parse(bytes); });
}

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::string_view offsets) {
  return "\"" + std::string(name) + "\":{\"dtype\":\"" + std::string(dtype) +
         "\",\"shape\":" + std::string(shape) + ",\"data_offsets\":" + std::string(offsets) + "}";
}

TEST(Safetensors, reads_entries_metadata_and_weights) {
  const std::string header = "{\"__metadata__\":{\"k\":\"v\"}," +
                             entry("b", "I64", "[1]", "[4,12]") + "," +
                             entry("a", "F32", "[1,1]", "[0,4]") + "}   ";
  const SafetensorsFile file = parse(file_of(header, std::string(12, '\0')));
  EXPECT_EQ(file.metadata().at("k"), "v");
  ASSERT_EQ(file.entries().size(), 2u);
  EXPECT_EQ(file.entries()[0].name, "a");
  EXPECT_EQ(file.weight(*file.find("a")).shape, (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(file.find("b")->dtype, "I64");
  EXPECT_MENTIONS(refusal_of([&] { file.weight(*file.find("b")); }), "I64");
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Safetensors, L09_header_lengths_that_lie_are_refused) {
  EXPECT_MENTIONS(refusal(ByteWriter().put(UINT64_MAX).raw("{}").bytes()), "at most 100000000");
  EXPECT_MENTIONS(refusal(ByteWriter().put<uint64_t>(10).raw("{}").bytes()), "the header");
  EXPECT_MENTIONS(refusal("1234567"), "the header length");
  EXPECT_MENTIONS(refusal(""), "the header length");
  EXPECT_MENTIONS(refusal(file_of("not JSON")), "does not start with '{'");
  EXPECT_MENTIONS(refusal(file_of("{\"a\":")), "not valid JSON");
  EXPECT_MENTIONS(refusal(file_of("{\"a\":\"\xC0\x80\"}")), "not valid JSON");
  EXPECT_MENTIONS(refusal(file_of("{" + entry("a", "F32", std::string(5000, '['), "[0,4]"))),
                  "nested deeper");
}

TEST(Safetensors, L10_offsets_that_are_no_pair_of_counts_are_refused) {
  for (const char* offsets : {"[-1,4]", "[8,4]", "[0]", "[0,1e30]", "[\"0\",\"4\"]", "[0,4,8]", "4",
                              "[0,4.0]", "[0,18446744073709551615]", "null"}) {
    EXPECT_MENTIONS(refusal(file_of("{" + entry("a", "F32", "[1]", offsets) + "}", "1234")),
                    "tensor a");
  }
  EXPECT_MENTIONS(refusal(file_of("{" + entry("a", "F32", "[-1]", "[0,4]") + "}", "1234")),
                  "tensor a");
  EXPECT_NO_THROW(parse(file_of("{" + entry("a", "F32", "[1]", "[0,4]") + "}", "1234")));
}

TEST(Safetensors, L11_a_shape_that_disagrees_with_its_span_is_refused) {
  EXPECT_MENTIONS(refusal(file_of("{" + entry("w", "F32", "[1000,1000]", "[0,4]") + "}", "1234")),
                  "tensor w");
  EXPECT_MENTIONS(
      refusal(file_of("{" + entry("w", "F32", "[4294967296,4294967296]", "[0,0]") + "}")),
      "tensor w");
  EXPECT_MENTIONS(refusal(file_of("{" + entry("w", "Q9", "[1]", "[0,4]") + "}", "1234")), "Q9");
}

TEST(Safetensors, L12_overlaps_holes_and_oversized_headers_are_refused) {
  const auto two = [](const char* a, const char* b, std::size_t size) {
    return file_of("{" + entry("a", "F32", "[1]", a) + "," + entry("b", "F32", "[1]", b) + "}",
                   std::string(size, '\0'));
  };
  EXPECT_NO_THROW(parse(two("[0,4]", "[4,8]", 8)));
  EXPECT_MENTIONS(refusal(two("[0,4]", "[0,4]", 4)), "overlap");
  EXPECT_MENTIONS(refusal(two("[0,4]", "[8,12]", 12)), "hole");
  EXPECT_MENTIONS(refusal(two("[0,4]", "[4,8]", 9)), "9 bytes of data");
  EXPECT_MENTIONS(refusal(two("[0,4]", "[4,8]", 7)), "cut off");
  EXPECT_MENTIONS(refusal(ByteWriter().put<uint64_t>(100'000'001).raw("{").bytes()), "at most");
  const std::string twice =
      "{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("a", "F32", "[1]", "[4,8]") + "}";
  EXPECT_MENTIONS(refusal(file_of(twice, std::string(8, '\0'))), "stands twice");
  EXPECT_MENTIONS(refusal(file_of("{\"__metadata__\":{\"k\":1}}")), "__metadata__");
}

TEST(Safetensors, writes_the_same_bytes_in_any_order_and_reads_them_back) {
  const ScratchFolder folder;
  const std::vector<float> values = {1, 2, 3};
  const std::vector<uint16_t> halves = {1, 2};
  const SafetensorsEntry a{"z", "F32", {3}, std::as_bytes(std::span(values))};
  const SafetensorsEntry b{"a", "BF16", {2, 1}, std::as_bytes(std::span(halves))};
  write_safetensors(folder.file("1"), {a, b}, {{"k", "v\"\n"}});
  write_safetensors(folder.file("2"), {b, a}, {{"k", "v\"\n"}});
  const std::string bytes = read_text_file(folder.file("1"));
  EXPECT_EQ(bytes, read_text_file(folder.file("2")));
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  EXPECT_EQ(header % 8, 0u);
  const SafetensorsFile file = SafetensorsFile::open(folder.file("1"));
  EXPECT_EQ(file.metadata().at("k"), "v\"\n");
  EXPECT_EQ(file.entries()[0].name, "z");
  EXPECT_EQ(std::memcmp(file.find("a")->bytes.data(), halves.data(), 4), 0);
  // Nothing but the two files is left behind.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(Safetensors, refuses_to_write_what_does_not_fit) {
  const ScratchFolder folder;
  const std::vector<float> values = {1, 2, 3};
  const auto bytes = std::as_bytes(std::span(values));
  EXPECT_THROW(write_safetensors(folder.file("x"), {{"a", "F32", {4}, bytes}}, {}), Error);
  EXPECT_THROW(write_safetensors(folder.file("x"), {{"a", "X", {3}, bytes}}, {}), Error);
  EXPECT_THROW(write_safetensors(folder.file("x"), {{"a", "F32", {-3}, bytes}}, {}), Error);
  EXPECT_THROW(
      write_safetensors(folder.file("x"), {{"a", "F32", {3}, bytes}, {"a", "F32", {3}, bytes}}, {}),
      Error);
  EXPECT_THROW(write_safetensors(folder.file("no/x"), {{"a", "F32", {3}, bytes}}, {}), Error);
  EXPECT_FALSE(std::filesystem::exists(folder.file("x")));
}

class Shards : public ::testing::Test {
 protected:
  void write_shard(const std::string& file, const std::string& name, float value) {
    const SafetensorsEntry entry{name, "F32", {1}, std::as_bytes(std::span(&value, 1))};
    write_safetensors(folder_.file(file), {entry}, {});
  }
  void write_index(const std::string& map) {
    folder_.write("model.safetensors.index.json", "{\"weight_map\":" + map + "}");
  }
  std::string refusal() {
    return refusal_of([&] { open_weights(folder_.path()); });
  }
  ScratchFolder folder_;
};

TEST_F(Shards, L14_a_missing_shard_and_a_path_outside_are_refused) {
  write_shard("1.safetensors", "a", 1);
  write_shard("2.safetensors", "b", 2);
  write_index(R"({"a":"1.safetensors","b":"2.safetensors"})");
  EXPECT_EQ(open_weights(folder_.path()).items.size(), 2u);
  std::filesystem::remove(folder_.file("2.safetensors"));
  EXPECT_MENTIONS(refusal(), "2.safetensors");
  for (const char* bad : {"../x", "/etc/passwd", "sub/x", "..", ".", "", "a\\\\b", "a\\u0000b"}) {
    write_index("{\"a\":\"" + std::string(bad) + "\"}");
    EXPECT_MENTIONS(refusal(), "same folder");
  }
  write_index(R"({"a":"1.safetensors","c":"1.safetensors"})");
  EXPECT_MENTIONS(refusal(), "no tensor c");
  write_index("[]");
  EXPECT_MENTIONS(refusal(), "weight_map");
  write_index(R"({"a":1})");
  EXPECT_MENTIONS(refusal(), "tensor a");
}

TEST_F(Shards, L15_only_indexed_files_are_read) {
  write_shard("1.safetensors", "a", 1);
  write_shard("model.safetensors", "a", 99);
  write_index(R"({"a":"1.safetensors"})");
  const ShardedWeights weights = open_weights(folder_.path());
  ASSERT_EQ(weights.items.size(), 1u);
  float value = 0;
  std::memcpy(&value, weights.items[0].entry->bytes.data(), 4);
  EXPECT_EQ(value, 1.0f);
}

TEST_F(Shards, L16_a_short_shard_is_refused) {
  write_shard("1.safetensors", "a", 1);
  write_index(R"({"a":"1.safetensors"})");
  std::filesystem::resize_file(folder_.file("1.safetensors"),
                               std::filesystem::file_size(folder_.file("1.safetensors")) - 1);
  EXPECT_MENTIONS(refusal(), "cut off");
}

TEST_F(Shards, a_folder_without_weights_says_what_was_looked_for) {
  EXPECT_MENTIONS(refusal(), "model.safetensors");
  folder_.write("pytorch_model.bin", "x");
  EXPECT_MENTIONS(refusal(), "converted");
}

}  // namespace
}  // namespace coppice
