// Budgets that give way to who waits: everybody gets an answer, nobody less than promised, the pool
// keeps its bound.
#include "coppice/server/engine_loop_testing.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests
using std::chrono::milliseconds;

constexpr int64_t kRows = 6;  // 3 layers x 2 KV heads
constexpr int64_t kMost = 60, kLeast = 12;
// A request of 60 + 8 entries a row may need 31 blocks, one of 12 + 8 entries 13.
constexpr int64_t kPool = 70;

EvictionConfig resolved(const std::string& policy, int64_t budget) {
  const CacheConfig sizes{.num_layers = 3, .num_kv_heads = 2, .head_dim = 8, .max_blocks = 1};
  return EvictionPolicy({.policy = policy, .budget_entries = budget}, sizes).config();
}

LoopRequest adaptive(Rng& rng, int64_t length = 60, int64_t tokens = 20,
                     const std::string& policy = "dbtrimkv") {
  LoopRequest asked;
  asked.request = greedy_request(random_prompt(rng, length), tokens);
  asked.request.eviction = resolved(policy, kMost);
  asked.least = resolved(policy, kLeast);
  return asked;
}

// What is asked before begin() comes in at once.
struct Served : LoopServer {
  explicit Served(int64_t max_blocks = kPool, int64_t snapshot_blocks = 0)
      : LoopServer(engine_config(resolved("dbtrimkv", kMost), max_blocks),
                   {.max_requests = 64, .snapshot_blocks = snapshot_blocks}) {}
  std::shared_ptr<Mailbox> ask(LoopRequest asked) {
    auto mailbox = std::make_shared<Mailbox>();
    loop.submit({std::move(asked)}, mailbox);
    return mailbox;
  }
};

RequestOutput answered(Mailbox& mailbox) {
  RequestOutput joined = collect(mailbox);
  EXPECT_FALSE(joined.error) << joined.error->message;
  return joined;
}

TEST(AdaptiveBudgets, who_is_alone_gets_all_and_equals_an_exact_request) {
  Rng rng(1);
  Served served;
  served.begin();
  for (int i = 0; i < 3; ++i) {
    const LoopRequest asked = adaptive(rng);
    const RequestOutput answer = answered(*served.ask(asked));
    EXPECT_EQ(answer.usage.kv.budget_entries, kMost * kRows);
    EXPECT_EQ(answer.usage.kv.least_budget_entries, kMost * kRows);
    EXPECT_EQ(ids_of(answer.tokens), alone(asked.request, *asked.request.eviction));
  }
  EXPECT_EQ(served.loop.stats().ever_squeezed, 0);
}

TEST(AdaptiveBudgets, K24_many_at_once_all_end_within_the_pool_and_above_their_least) {
  for (const int64_t snapshot_blocks : {int64_t{0}, int64_t{30}}) {
    Rng rng(2);
    Served served(kPool, snapshot_blocks);
    std::vector<std::shared_ptr<Mailbox>> adaptive_ones, exact_ones;
    std::vector<LoopRequest> exact;
    for (int i = 0; i < 24; ++i) {
      LoopRequest asked = adaptive(rng, 30 + i * 2, 1 + i % 13, i % 5 == 3 ? "snapkv" : "dbtrimkv");
      if (i % 3 == 1) {
        asked.least.reset();
        asked.request.eviction = resolved("dbtrimkv", 24);
        exact.push_back(asked);
        exact_ones.push_back(served.ask(asked));
      } else {
        adaptive_ones.push_back(served.ask(asked));
      }
    }
    served.begin();
    int64_t squeezed = 0;
    for (const auto& mailbox : adaptive_ones) {
      const RequestOutput answer = answered(*mailbox);
      EXPECT_GE(answer.usage.kv.least_budget_entries, kLeast * kRows);
      EXPECT_LE(answer.usage.kv.least_budget_entries, answer.usage.kv.budget_entries);
      EXPECT_LE(answer.usage.kv.budget_entries, kMost * kRows);
      squeezed += answer.usage.kv.least_budget_entries < kMost * kRows ? 1 : 0;
    }
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const RequestOutput answer = answered(*exact_ones[i]);
      EXPECT_FALSE(answer.usage.kv.least_budget_entries);
      EXPECT_EQ(ids_of(answer.tokens), alone(exact[i].request, *exact[i].request.eviction)) << i;
    }
    EXPECT_GT(squeezed, 3);
    // The pressure is gone.
    const RequestOutput last = answered(*served.ask(adaptive(rng)));
    EXPECT_EQ(last.usage.kv.least_budget_entries, kMost * kRows);
    const LoopStats stats = served.loop.stats();
    EXPECT_LE(stats.blocks_peak, kPool);
    EXPECT_EQ(stats.ever_squeezed, squeezed);
    EXPECT_EQ(stats.squeezed, 0);
    EXPECT_EQ(stats.failed, 0);
    served.end();
    EXPECT_EQ(served.engine.cache().blocks_in_use(), 0);
  }
}

// Three that fit together at a lower level alone: none waits for another to end.
TEST(AdaptiveBudgets, those_that_wait_start_since_others_give_way) {
  const auto peak_running = [](bool gives_way) {
    Rng rng(3);
    Served served;
    std::vector<std::shared_ptr<Mailbox>> mailboxes;
    for (int i = 0; i < 4; ++i) {
      LoopRequest asked = adaptive(rng, 60, 40);
      if (!gives_way) asked.least.reset();
      mailboxes.push_back(served.ask(asked));
    }
    served.begin();
    int64_t most = 0;
    for (const auto& mailbox : mailboxes) {
      while (true) {
        most = std::max(most, served.loop.stats().running);
        const std::optional<Update> update = mailbox->take(milliseconds(60'000));
        if (!update || update->output.finished()) break;
      }
    }
    return most;
  };
  EXPECT_EQ(peak_running(false), 2);
  EXPECT_EQ(peak_running(true), 4);
}

TEST(AdaptiveBudgets, all_give_up_the_same_part_and_grow_again) {
  Rng rng(4);
  Served served;
  const auto longest = served.ask(adaptive(rng, 20, 130));
  const auto first = served.ask(adaptive(rng, 20, 30)), second = served.ask(adaptive(rng, 20, 30));
  const auto third = served.ask(adaptive(rng, 20, 30));
  served.begin();
  const RequestOutput a = answered(*first), b = answered(*second), c = answered(*third);
  EXPECT_EQ(a.usage.kv.least_budget_entries, b.usage.kv.least_budget_entries);
  EXPECT_EQ(a.usage.kv.least_budget_entries, c.usage.kv.least_budget_entries);
  EXPECT_LT(*a.usage.kv.least_budget_entries, kMost * kRows);
  const RequestOutput last = answered(*longest);
  EXPECT_EQ(last.usage.kv.budget_entries, kMost * kRows);
  EXPECT_EQ(last.usage.kv.least_budget_entries, a.usage.kv.least_budget_entries);
  EXPECT_EQ(last.usage.kv.kept_entries, kMost * kRows);  // it grew to that again
}

// What starts at its least alone is served, though its full budget never fits.
TEST(AdaptiveBudgets, a_budget_above_the_pool_is_lowered_rather_than_refused) {
  Rng rng(5);
  Served served(25);
  served.begin();
  const LoopRequest asked = adaptive(rng, 100, 20);
  const RequestOutput answer = answered(*served.ask(asked));
  EXPECT_LT(*answer.usage.kv.budget_entries, kMost * kRows);
  EXPECT_GE(*answer.usage.kv.budget_entries, kLeast * kRows);
  LoopRequest exact = asked;
  exact.least.reset();
  auto mailbox = served.ask(exact);
  const std::optional<Update> refused = mailbox->take(milliseconds(60'000));
  ASSERT_TRUE(refused && refused->output.error);
  EXPECT_EQ(refused->output.error->code, ErrorCode::kCapacity);
}

// States read under two budgets are kept for nobody; those of one level serve that level.
TEST(AdaptiveBudgets, K18_snapshots_are_exact) {
  Rng rng(6);
  Served served(120, 60);
  const LoopRequest asked = adaptive(rng, 90, 10);
  std::vector<std::shared_ptr<Mailbox>> crowd;
  for (int i = 0; i < 8; ++i)
    crowd.push_back(served.ask(i % 2 == 0 ? asked : adaptive(rng, 90, 10)));
  served.begin();
  for (const auto& mailbox : crowd) answered(*mailbox);
  const std::vector<int32_t> expected = alone(asked.request, *asked.request.eviction);
  for (int i = 0; i < 2; ++i) {
    const RequestOutput answer = answered(*served.ask(asked));
    EXPECT_EQ(answer.usage.kv.least_budget_entries, kMost * kRows);
    EXPECT_EQ(ids_of(answer.tokens), expected) << i;
    if (i > 0) {
      EXPECT_EQ(answer.usage.tokens.reused, 88);
    }
  }
}

TEST(AdaptiveBudgets, A04_cancelled_ones_give_back_their_blocks) {
  Rng rng(7);
  Served served(kPool, 30);
  served.begin();
  for (int i = 0; i < 40; ++i) {
    auto mailbox = std::make_shared<Mailbox>();
    const CallId call = served.loop.submit({adaptive(rng, 60, 60)}, mailbox);
    if (i % 3 == 0) mailbox->take(milliseconds(10));
    if (i % 4 != 0) served.loop.cancel(call);
  }
  EXPECT_FALSE(answered(*served.ask(adaptive(rng))).error);
  EXPECT_LE(served.loop.stats().blocks_peak, kPool);
  served.end();
  EXPECT_EQ(served.engine.cache().blocks_in_use(), 0);
  EXPECT_TRUE(served.engine.sessions().empty());
}

}  // namespace
}  // namespace coppice
