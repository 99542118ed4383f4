#include "coppice/engine/token_positions.h"

#include <gtest/gtest.h>

#include "tests/parity/golden_qwen3_vl.h"

namespace coppice {
namespace {

ImageSpan picture(int64_t begin, int64_t height, int64_t width) {
  return {.begin = begin,
          .tokens = height * width,
          .hash = "picture",
          .embeddings = {},
          .grid_height = height,
          .grid_width = width};
}

using Row = std::vector<int32_t>;

TEST(TokenPositions, text_alone_counts_on) {
  const TokenPositions got = token_positions({}, 7, 3, 5);
  EXPECT_EQ(got.time, (Row{5, 6, 7}));
  EXPECT_FALSE(got.three_part());
  EXPECT_EQ(got.next, 8);
  EXPECT_EQ(got.reach, 8);
}

TEST(TokenPositions, a_picture_takes_up_its_longer_side) {
  const std::vector<ImageSpan> images = {picture(1, 2, 3)};
  const TokenPositions got = token_positions(images, 0, 9, 0);
  EXPECT_EQ(got.time, (Row{0, 1, 1, 1, 1, 1, 1, 4, 5}));
  EXPECT_EQ(got.height, (Row{0, 1, 1, 1, 2, 2, 2, 4, 5}));
  EXPECT_EQ(got.width, (Row{0, 1, 2, 3, 1, 2, 3, 4, 5}));
  EXPECT_EQ(got.next, 6);
  EXPECT_EQ(got.reach, 6);
}

TEST(TokenPositions, an_open_picture_holds_the_next_position_and_reaches_on) {
  const std::vector<ImageSpan> images = {picture(1, 2, 3)};
  const TokenPositions half = token_positions(images, 0, 4, 0);
  EXPECT_EQ(half.next, 1);
  EXPECT_EQ(half.reach, 4);
  // Renumbered in between: the rest stands where the part that was read does.
  const TokenPositions rest = token_positions(images, 4, 4, 11);
  EXPECT_EQ(rest.time, (Row{11, 11, 11, 14}));
  EXPECT_EQ(rest.height, (Row{12, 12, 12, 14}));
  EXPECT_EQ(rest.width, (Row{11, 12, 13, 14}));
  EXPECT_EQ(rest.next, 15);
  EXPECT_EQ(rest.reach, 15);
}

TEST(TokenPositions, a_picture_without_a_grid_stands_in_a_line) {
  ImageSpan line = picture(1, 2, 2);
  line.grid_height = line.grid_width = 0;
  const std::vector<ImageSpan> images = {line, picture(6, 1, 2)};
  EXPECT_EQ(token_positions(images, 0, 6, 0).time, (Row{0, 1, 2, 3, 4, 5}));
  EXPECT_FALSE(token_positions(images, 0, 6, 0).three_part());
  EXPECT_EQ(token_positions(images, 0, 9, 0).time, (Row{0, 1, 2, 3, 4, 5, 6, 6, 8}));
}

// Where the pictures of a golden prompt stand.
std::vector<ImageSpan> spans(const golden::LlavaCase& one, const std::vector<int64_t>& ids) {
  std::vector<ImageSpan> result;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] != golden::kQwenImageId || (i > 0 && ids[i - 1] == golden::kQwenImageId)) continue;
    const at::Tensor grid = golden::qwen_expected(one.pictures[result.size()] + ".grid");
    result.push_back(
        picture(static_cast<int64_t>(i), grid[0].item<int64_t>() / 2, grid[1].item<int64_t>() / 2));
  }
  return result;
}

TEST(TokenPositions, I15_equal_the_reference_however_they_are_cut) {
  for (const golden::LlavaCase& one : golden::qwen_cases()) {
    const std::vector<int64_t> ids = golden::to_vector(golden::qwen_expected(one.name + ".prompt"));
    const std::vector<ImageSpan> images = spans(one, ids);
    EXPECT_EQ(images.size(), one.pictures.size());
    const at::Tensor wanted = golden::qwen_expected(one.name + ".positions");
    const auto total = static_cast<int64_t>(ids.size());
    for (const int64_t chunk : {int64_t{1}, int64_t{7}, int64_t{16}, total}) {
      int64_t next = 0;
      for (int64_t first = 0; first < total; first += chunk) {
        const int64_t count = std::min(chunk, total - first);
        const TokenPositions got = token_positions(images, first, count, next);
        for (int64_t i = 0; i < count; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const Row parts = {got.time[at], got.three_part() ? got.height[at] : got.time[at],
                             got.three_part() ? got.width[at] : got.time[at]};
          for (int64_t axis = 0; axis < 3; ++axis)
            ASSERT_EQ(parts[static_cast<std::size_t>(axis)],
                      wanted[axis][first + i].item<int64_t>())
                << one.name << " token " << first + i << " axis " << axis;
        }
        next = got.next;
      }
      EXPECT_EQ(next, wanted.max().item<int64_t>() + 1) << one.name;
    }
  }
}

}  // namespace
}  // namespace coppice
