#include "coppice/ops/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "coppice/core/error.h"

namespace coppice::ops {
namespace {

// Restores the number of threads.
struct Threads {
  int before = num_threads();
  explicit Threads(int count) { set_num_threads(count); }
  ~Threads() { set_num_threads(before); }
};

TEST(Parallel, EachItemOnce) {
  for (const int threads : {1, 2, 5}) {
    const Threads guard(threads);
    for (const int64_t size : {0, 1, 2, 7, 1000}) {
      for (const int64_t grain : {int64_t{-1}, int64_t{1}, int64_t{3}, int64_t{1} << 62}) {
        std::vector<std::atomic<int>> seen(static_cast<std::size_t>(size));
        parallel_for(10, 10 + size, grain, [&](int64_t begin, int64_t end) {
          EXPECT_LT(begin, end);
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i - 10)];
        });
        for (const auto& count : seen) EXPECT_EQ(count.load(), 1);
      }
    }
  }
}

TEST(Parallel, GuidedPiecesCoverTheRange) {
  for (const int threads : {1, 2, 4}) {
    const Threads guard(threads);
    for (const int64_t size : {0, 1, 5, 999}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(size));
      std::atomic<int64_t> pieces{0};
      parallel_for_guided(-3, size - 3, 4, [&](int64_t begin, int64_t end) {
        ++pieces;
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i + 3)];
      });
      for (const auto& count : seen) EXPECT_EQ(count.load(), 1);
      EXPECT_LE(pieces.load(), std::max<int64_t>(size / 10, 1 + size / 4));
    }
  }
}

TEST(Parallel, ManyShortLoops) {
  const Threads guard(3);
  std::atomic<int64_t> total{0};
  for (int i = 0; i < 20000; ++i) {
    parallel_for(0, 4, 1, [&](int64_t begin, int64_t) { total += begin; });
  }
  EXPECT_EQ(total.load(), 20000 * 6);
}

TEST(Parallel, WakesAfterSleep) {
  const Threads guard(2);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> count{0};
    parallel_for(0, 100, 1, [&](int64_t, int64_t) { ++count; });
    EXPECT_EQ(count.load(), 100);
  }
}

TEST(Parallel, ExceptionsReachTheCaller) {
  const Threads guard(3);
  for (int i = 0; i < 100; ++i) {
    EXPECT_THROW(parallel_for(0, 50, 1,
                              [](int64_t begin, int64_t) {
                                if (begin % 10 == 7) fail_argument("item {}", begin);
                              }),
                 Error);
    std::atomic<int> count{0};
    parallel_for(0, 10, 1, [&](int64_t, int64_t) { ++count; });
    EXPECT_EQ(count.load(), 10);
  }
}

TEST(Parallel, NestedAndConcurrentLoops) {
  const Threads guard(3);
  std::atomic<int> count{0};
  const auto work = [&] {
    for (int i = 0; i < 200; ++i) {
      parallel_for(0, 4, 1, [&](int64_t, int64_t) {
        parallel_for(0, 5, 2,
                     [&](int64_t begin, int64_t end) { count += static_cast<int>(end - begin); });
      });
    }
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(count.load(), 2 * 200 * 20);
}

TEST(Parallel, CountsAreChecked) {
  EXPECT_THROW(set_num_threads(0), Error);
  EXPECT_THROW(set_num_threads(5000), Error);
  EXPECT_GE(num_threads(), 1);
}

}  // namespace
}  // namespace coppice::ops
