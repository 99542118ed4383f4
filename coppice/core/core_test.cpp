#include <gtest/gtest.h>

#include <string>

#include "coppice/core/error.h"
#include "coppice/core/json.h"
#include "coppice/core/mapped_file.h"
#include "coppice/core/rng.h"
#include "coppice/core/stored_tensor.h"

namespace coppice {
namespace {

TEST(Json, T17_lone_surrogates_are_refused_without_abort) {
  EXPECT_THROW(parse_json(R"({"content":"\ud83d\n"})", "body"), Error);
  EXPECT_THROW(parse_json(R"("\udc00")", "body"), Error);
}

TEST(Json, A10_deep_nesting_is_refused) {
  EXPECT_THROW(parse_json(std::string(100000, '['), "body"), Error);
  EXPECT_EQ(parse_json(std::string(100, '[') + std::string(100, ']'), "body").size(), 1u);
}

TEST(Json, L12_duplicate_keys_are_refused_where_asked) {
  const std::string text = R"({"a":1,"b":{"a":2},"a":3})";
  EXPECT_EQ(parse_json(text, "header")["a"], 3);
  EXPECT_THROW(parse_json(text, "header", {.reject_duplicate_keys = true}), Error);
}

TEST(Json, T20_invalid_utf8_is_refused_on_input_and_replaced_on_output) {
  EXPECT_THROW(parse_json("\"\xC0\x80\"", "body"), Error);
  EXPECT_EQ(dump_json(Json("a\xFFz")), "\"a\xEF\xBF\xBDz\"");
}

TEST(MappedFile, says_what_is_wrong) {
  EXPECT_THROW(MappedFile::open("/nonexistent/file"), Error);
  EXPECT_THROW(MappedFile::open("/"), Error);
}

TEST(Rng, one_seed_gives_one_stream) {
  Rng a(7), b(7), c(8);
  const double first = a.uniform();
  EXPECT_EQ(first, b.uniform());
  EXPECT_NE(first, c.uniform());
  EXPECT_GE(first, 0.0);
  EXPECT_LT(first, 1.0);
}

TEST(StoredTensor, row_sizes_follow_the_block_layout) {
  StoredTensor tensor;
  tensor.type = StorageType::kQ4_K;
  tensor.shape = {3, 512};
  EXPECT_EQ(tensor.rows(), 3);
  EXPECT_EQ(tensor.row_bytes(), 288);
}

}  // namespace
}  // namespace coppice
