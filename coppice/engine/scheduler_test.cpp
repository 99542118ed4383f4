#include "coppice/engine/scheduler.h"

#include <gtest/gtest.h>

#include <vector>

#include "coppice/core/rng.h"

namespace coppice {
namespace {

using Sequences = std::vector<SchedulerSequence>;

SchedulerSequence prefill(int64_t id, int64_t pending, int64_t chunk, int64_t blocks) {
  return {.id = id, .pending_tokens = pending, .chunk_tokens = chunk, .worst_blocks = blocks};
}

SchedulerSequence decode(int64_t id, int64_t blocks) {
  return {
      .id = id, .pending_tokens = 1, .chunk_tokens = 32, .decoding = true, .worst_blocks = blocks};
}

TEST(Scheduler, prefill_and_decode_share_a_batch) {
  const StepPlan plan = plan_step({.max_tokens_between = 32}, 100, 0,
                                  Sequences{decode(1, 10), prefill(2, 70, 20, 10)},
                                  Sequences{prefill(3, 12, 32, 10)});
  EXPECT_EQ(plan.admitted, (std::vector<int64_t>{3}));
  EXPECT_EQ(plan.items, (std::vector<StepItem>{{1, 1}, {2, 20}, {3, 12}}));
  EXPECT_FALSE(plan.stuck);
}

TEST(Scheduler, admission_is_first_come_first_served_and_reserves_the_worst_case) {
  const Sequences waiting = {prefill(1, 5, 8, 60), prefill(2, 5, 8, 50), prefill(3, 5, 8, 1)};
  // The second does not fit beside the first, and the third does not overtake it.
  EXPECT_EQ(plan_step({}, 100, 0, {}, waiting).admitted, (std::vector<int64_t>{1}));
  EXPECT_EQ(plan_step({}, 110, 0, {}, waiting).admitted, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(plan_step({}, 111, 0, {}, waiting).admitted, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(plan_step({}, 111, 1, {}, waiting).admitted, (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(plan_step({}, 100, 0, Sequences{decode(9, 50)}, waiting).admitted.empty());
  EXPECT_FALSE(plan_step({}, 100, 0, Sequences{decode(9, 50)}, waiting).stuck);
}

TEST(Scheduler, what_a_session_holds_counts_once) {
  SchedulerSequence continued = prefill(1, 5, 8, 60);
  continued.held_blocks = 40;
  EXPECT_EQ(plan_step({}, 60, 40, {}, Sequences{continued}).admitted.size(), 1u);
  EXPECT_EQ(plan_step({}, 59, 40, {}, Sequences{continued}).admitted.size(), 0u);
  EXPECT_EQ(plan_step({}, 60, 41, {}, Sequences{continued}).admitted.size(), 0u);
}

TEST(Scheduler, stuck_when_nothing_runs_and_the_first_does_not_fit) {
  EXPECT_TRUE(plan_step({}, 10, 8, {}, Sequences{prefill(1, 5, 8, 5)}).stuck);
  EXPECT_FALSE(plan_step({}, 10, 0, {}, {}).stuck);
}

TEST(Scheduler, max_sequences_holds) {
  const SchedulerConfig config{.max_sequences = 2};
  const Sequences waiting = {prefill(2, 5, 8, 1), prefill(3, 5, 8, 1)};
  const StepPlan plan = plan_step(config, 100, 0, Sequences{decode(1, 1)}, waiting);
  EXPECT_EQ(plan.admitted, (std::vector<int64_t>{2}));
}

TEST(Scheduler, chunks_are_never_cut_and_one_always_runs) {
  const SchedulerConfig config{.max_sequences = 16, .max_batch_tokens = 40};
  const Sequences running = {prefill(1, 100, 32, 1), prefill(2, 100, 32, 1), prefill(3, 7, 32, 1)};
  const StepPlan plan = plan_step(config, 100, 0, running, {});
  EXPECT_EQ(plan.items, (std::vector<StepItem>{{1, 32}, {3, 7}}));
  const SchedulerConfig tight{.max_sequences = 16, .max_batch_tokens = 1, .max_tokens_between = 32};
  EXPECT_EQ(plan_step(tight, 100, 0, Sequences{decode(5, 1), prefill(1, 99, 32, 1)}, {}).items,
            (std::vector<StepItem>{{5, 1}, {1, 32}}));
}

TEST(Scheduler, answers_wait_for_few_prompt_tokens_between_two_of_theirs) {
  const SchedulerConfig config{.max_tokens_between = 40};
  Sequences running = {prefill(1, 30, 32, 1), prefill(2, 100, 32, 1), prefill(3, 10, 32, 1)};
  StepPlan plan = plan_step(config, 100, 0, running, {});  // nobody waits
  EXPECT_EQ(plan.items, (std::vector<StepItem>{{1, 30}, {2, 32}, {3, 10}}));
  EXPECT_FALSE(plan.slice);

  running.push_back(decode(4, 1));
  plan = plan_step(config, 100, 0, running, {});
  EXPECT_EQ(plan.items, (std::vector<StepItem>{{4, 1}, {1, 30}, {3, 10}}));  // 2 would be too much
  EXPECT_FALSE(plan.slice);

  running[0].chunk_tokens = running[0].pending_tokens = 50;
  plan = plan_step(config, 100, 0, running, {});
  EXPECT_EQ(plan.items, (std::vector<StepItem>{{4, 1}}));
  EXPECT_EQ(plan.slice, (StepSlice{1, 50, 40}));  // 40 of 50 layers, so to say

  running[1].begun = true;  // goes first, whoever was there before
  running[1].chunk_tokens = 80;
  plan = plan_step(config, 100, 0, running, {});
  EXPECT_EQ(plan.items, (std::vector<StepItem>{{4, 1}}));
  EXPECT_EQ(plan.slice, (StepSlice{2, 80, 40}));

  running.pop_back();  // the answer is there: what was begun is read to its end, others beside it
  plan = plan_step(config, 100, 0, running, {});
  EXPECT_EQ(plan.items, (std::vector<StepItem>{{1, 50}, {3, 10}}));
  EXPECT_EQ(plan.slice, (StepSlice{2, 80, 80}));
}

TEST(Scheduler, the_oldest_prompt_and_the_shortest_take_turns) {
  const SchedulerConfig config{.max_batch_tokens = 40, .max_tokens_between = 40};
  Sequences running = {prefill(1, 900, 32, 1), prefill(2, 500, 32, 1), prefill(3, 70, 32, 1)};
  EXPECT_EQ(plan_step(config, 100, 0, running, {}, 4).items, (std::vector<StepItem>{{1, 32}}));
  EXPECT_EQ(plan_step(config, 100, 0, running, {}, 5).items, (std::vector<StepItem>{{3, 32}}));
  running.push_back(decode(4, 1));
  running[0].begun = true;  // whatever the turn
  EXPECT_EQ(plan_step(config, 100, 0, running, {}, 5).slice, (StepSlice{1, 32, 32}));
  EXPECT_EQ(plan_step(config, 100, 0, Sequences{prefill(1, 900, 32, 1)},
                      Sequences{prefill(2, 60, 32, 1)}, 7)
                .items,
            (std::vector<StepItem>{{2, 32}}));
}

// Simulated runs: everything that can fit is served to its end, in order of admission, and the
// blocks spoken for never pass the total.
TEST(Scheduler, A15_A17_random_loads_are_served) {
  Rng rng(2);
  for (int round = 0; round < 200; ++round) {
    const SchedulerConfig config{.max_sequences = 1 + int64_t(rng.below(4)),
                                 .max_batch_tokens = 1 + int64_t(rng.below(64))};
    const int64_t total = 20;
    Sequences waiting, running;
    for (int64_t id = 0; id < 12; ++id) {
      waiting.push_back(prefill(id, 1 + int64_t(rng.below(60)), 1 + int64_t(rng.below(32)),
                                1 + int64_t(rng.below(20))));
    }
    int64_t next = 0;
    int steps = 0;
    while (!waiting.empty() || !running.empty()) {
      ASSERT_LT(++steps, 2000);
      const StepPlan plan = plan_step(config, total, 0, running, waiting, steps);
      ASSERT_FALSE(plan.stuck);
      ASSERT_FALSE(plan.items.empty());
      for (const int64_t id : plan.admitted) {
        ASSERT_EQ(id, next++);
        running.push_back(waiting.front());
        waiting.erase(waiting.begin());
      }
      int64_t spoken_for = 0;
      for (const auto& s : running) spoken_for += s.worst_blocks;
      ASSERT_LE(spoken_for, total);
      ASSERT_LE(int64_t(running.size()), config.max_sequences);
      for (const StepItem& item : plan.items) {
        for (auto& s : running) {
          if (s.id != item.id) continue;
          ASSERT_EQ(item.tokens, std::min(s.pending_tokens, s.chunk_tokens));
          s.pending_tokens -= item.tokens;
        }
      }
      std::erase_if(running, [](const SchedulerSequence& s) { return s.pending_tokens == 0; });
    }
  }
}

}  // namespace
}  // namespace coppice
