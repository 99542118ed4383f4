#include "coppice/engine/stop_strings.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"

namespace coppice {
namespace {

struct Result {
  std::string text;
  std::vector<std::string> pieces;
  bool stopped = false;
};

Result feed(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStrings matcher(stops);
  Result result;
  for (const std::string& piece : pieces) {
    result.pieces.push_back(matcher.push(piece));
    result.text += result.pieces.back();
    if (matcher.stopped()) break;
  }
  result.text += matcher.finish();
  result.stopped = matcher.stopped();
  return result;
}

// The text before the first stop that is complete, by trying every end.
std::string brute_force(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopStrings, A02_stop_over_several_pieces_never_leaks_its_head) {
  const Result r = feed({"DEFGHIJ"}, {"ABC", "DE", "F", "GHI", "JKL", "M"});
  EXPECT_EQ(r.text, "ABC");
  EXPECT_TRUE(r.stopped);
  EXPECT_EQ(r.pieces, (std::vector<std::string>{"ABC", "", "", "", ""}));
  EXPECT_EQ(feed({"beta gamma"}, {"alpha ", "be", "ta ", "gam", "ma delta"}).text, "alpha ");
}

TEST(StopStrings, A02_half_match_is_flushed_at_the_end) {
  const Result r = feed({"beta gamma"}, {"alpha ", "beta ", "gam"});
  EXPECT_EQ(r.text, "alpha beta gam");
  EXPECT_FALSE(r.stopped);
  EXPECT_EQ(r.pieces[1], "");
}

TEST(StopStrings, A02_failed_match_is_released_at_once) {
  const Result r = feed({"abX"}, {"ab", "ab", "c"});
  EXPECT_EQ(r.pieces, (std::vector<std::string>{"", "ab", "abc"}));
  EXPECT_EQ(feed({"aab"}, {"a", "a", "a", "b", "z"}).text, "a");  // a match inside a failed one
}

TEST(StopStrings, A02_stop_inside_a_multibyte_character) {
  const std::string jie = "\xE7\x95\x8C";                          // one character of three bytes
  EXPECT_EQ(feed({jie}, {"x\xE7", "\x95", "\x8C y"}).text, "x");   // split over pieces
  EXPECT_EQ(feed({"\x95"}, {"x\xE7", "\x95\x8C"}).text, "x\xE7");  // bytes are what counts
  const std::string zhong = "\xE4\xB8\xAD";  // shares its first two bytes with the next one
  EXPECT_EQ(feed({"\xE4\xB8\xBD"}, {zhong, zhong}).text, zhong + zhong);
}

TEST(StopStrings, A02_several_stops_first_complete_wins) {
  EXPECT_EQ(feed({"abcd", "bc"}, {"xabcd"}).text, "xa");
  EXPECT_EQ(feed({"c", "abc"}, {"xabcd"}).text, "x");  // complete together: the longest
  EXPECT_EQ(feed({"1", "2", "3", "4", "5"}, {"ab", "c5d"}).text, "abc");
}

TEST(StopStrings, A02_empty_stop_is_refused) { EXPECT_THROW(StopStrings({"a", ""}), Error); }

TEST(StopStrings, nothing_to_find_passes_everything) {
  EXPECT_EQ(feed({}, {"a", "", "b"}).pieces, (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(feed({"x"}, {"", "a", ""}).text, "a");
  StopStrings matcher({"x"});
  EXPECT_EQ(matcher.push("ax"), "a");
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopStrings, equals_brute_force_however_the_text_is_cut) {
  Rng rng(11);
  const auto word = [&](uint64_t least, uint64_t most) {
    std::string s;
    const uint64_t n = least + rng.below(most - least + 1);
    for (uint64_t i = 0; i < n; ++i) s += static_cast<char>('a' + rng.below(2));
    return s;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (uint64_t i = 0, n = 1 + rng.below(3); i < n; ++i) stops.push_back(word(1, 8));
    std::vector<std::string> pieces;
    std::string text;
    for (int i = 0; i < 12; ++i) {
      pieces.push_back(word(0, 4));
      text += pieces.back();
    }
    ASSERT_EQ(feed(stops, pieces).text, brute_force(stops, text)) << text;
  }
}

TEST(StopStrings, A02_time_is_linear_in_the_text) {
  // Almost-matches throughout: quadratic matching or copying would need minutes.
  StopStrings matcher({std::string(4000, 'a') + "b"});
  const auto begin = std::chrono::steady_clock::now();
  std::size_t released = 0;
  for (int i = 0; i < 200000; ++i) released += matcher.push("a").size();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(released + matcher.finish().size(), 200000u);
  EXPECT_LT(seconds.count(), 20.0);
}

}  // namespace
}  // namespace coppice
