// The loop around the engine: equal answers, the bound, reuse, cancelling, refusals.
#include "coppice/server/engine_loop.h"

#include <thread>

#include "coppice/server/api_error.h"
#include "coppice/server/engine_loop_testing.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests
using std::chrono::milliseconds;

EvictionConfig dbtrimkv(int64_t budget) {
  return {.policy = "dbtrimkv", .budget_entries = budget, .sinks = 2};
}

// A loop that runs from the start.
struct Served : LoopServer {
  explicit Served(EvictionConfig eviction = dbtrimkv(20), int64_t max_blocks = 400,
                  int64_t snapshot_blocks = 200, int64_t max_requests = 64)
      : LoopServer(engine_config(std::move(eviction), max_blocks),
                   {.max_requests = max_requests, .snapshot_blocks = snapshot_blocks}) {
    begin();
  }
};

RequestOutput ask(EngineLoop& loop, const Request& request) {
  auto mailbox = std::make_shared<Mailbox>();
  loop.submit({request}, mailbox);
  return collect(*mailbox);
}

TEST(EngineLoop, K18_a_turn_that_goes_on_from_a_snapshot_equals_a_fresh_run) {
  for (const int64_t budget : {10, 20, 1000}) {
    Rng rng(7);
    Served served(dbtrimkv(budget));
    std::vector<int32_t> prompt = random_prompt(rng, 21);
    for (int turn = 0; turn < 4; ++turn) {
      const Request request = greedy_request(prompt, 6);
      const RequestOutput answer = ask(served.loop, request);
      EXPECT_EQ(ids_of(answer.tokens), alone(request, dbtrimkv(budget))) << budget << " " << turn;
      const auto size = static_cast<int64_t>(prompt.size());
      EXPECT_EQ(answer.usage.tokens.prompt, size);
      if (turn > 0) {
        EXPECT_GE(answer.usage.tokens.reused, size - 6 - 9 - 8) << turn;
      }
      for (const int32_t id : ids_of(answer.tokens)) prompt.push_back(id);
      for (const int32_t id : random_prompt(rng, 9)) prompt.push_back(id);
    }
    // The same start, then another way: only what is equal is used.
    std::vector<int32_t> other(prompt.begin(), prompt.begin() + 30);
    other[25] = (other[25] + 1) % kVocab;
    const Request request = greedy_request(other, 6);
    EXPECT_EQ(ids_of(ask(served.loop, request).tokens), alone(request, dbtrimkv(budget)));
  }
}

TEST(EngineLoop, I12_equal_text_with_another_picture_shares_nothing_of_it) {
  Rng rng(5);
  Served served;
  Request text = greedy_request(random_prompt(rng, 44), 6);
  const auto with_picture = [&](uint64_t seed, int64_t tokens) {
    torch::manual_seed(seed);
    Request request = text;
    request.images = {{10, tokens, std::to_string(seed), torch::randn({tokens, 32})}};
    return request;
  };
  const Request a = with_picture(1, 18), b = with_picture(2, 18), larger = with_picture(3, 25);
  for (const auto& [request, reused] :
       {std::pair{&a, 0}, {&b, 0}, {&a, 40}, {&larger, 0}, {&b, 40}}) {
    const RequestOutput answer = ask(served.loop, *request);
    ASSERT_FALSE(answer.error) << answer.error->message;
    EXPECT_EQ(ids_of(answer.tokens), alone(*request, dbtrimkv(20)));
    EXPECT_EQ(answer.usage.tokens.reused, reused);
    EXPECT_GT(answer.usage.kv.kept_image_entries, 0);
  }
  EXPECT_EQ(ask(served.loop, text).usage.tokens.reused, 0);
  // A shorter text whose snapshot ends inside the picture.
  Request cut = a;
  cut.prompt[30] = (cut.prompt[30] + 1) % kVocab;
  EXPECT_EQ(ids_of(ask(served.loop, cut).tokens), alone(cut, dbtrimkv(20)));
}

TEST(EngineLoop, other_settings_never_share_a_snapshot) {
  Rng rng(3);
  Served served;
  Request request = greedy_request(random_prompt(rng, 40), 5);
  ask(served.loop, request);
  for (const EvictionConfig& eviction :
       {dbtrimkv(12), EvictionConfig{.policy = "streaming", .budget_entries = 20},
        EvictionConfig{.policy = "dbtrimkv", .budget_entries = 20, .sinks = 3}}) {
    request.eviction = eviction;
    const RequestOutput answer = ask(served.loop, request);
    EXPECT_EQ(answer.usage.tokens.reused, 0);
    EXPECT_EQ(ids_of(answer.tokens), alone(request, eviction));
  }
  request.eviction = dbtrimkv(20);
  EXPECT_EQ(ask(served.loop, request).usage.tokens.reused, 32);
}

TEST(EngineLoop, K18_snapshots_are_those_of_the_same_pins) {
  Rng rng(13);
  Served served(dbtrimkv(20));
  std::vector<int32_t> prompt = random_prompt(rng, 45);
  EvictionConfig pinned = dbtrimkv(20);
  pinned.pins = {{5, 13}};
  Request request = greedy_request(prompt, 6);
  const auto expect_reused = [&](int64_t reused, const char* what) {
    const RequestOutput answer = ask(served.loop, request);
    ASSERT_FALSE(answer.error) << answer.error->message;
    EXPECT_EQ(answer.usage.tokens.reused, reused) << what;
    EXPECT_EQ(ids_of(answer.tokens), alone(request, *request.eviction)) << what;
  };
  request.eviction = dbtrimkv(20);
  expect_reused(0, "cold");
  request.eviction = pinned;
  expect_reused(0, "with a pin");
  expect_reused(40, "with the pin again");
  // The next turn pins a message that was not there, behind what the snapshot holds.
  for (const int32_t id : random_prompt(rng, 30)) request.prompt.push_back(id);
  request.eviction->pins.push_back({50, 55});
  expect_reused(40, "one more behind");
  expect_reused(72, "the same again");
  request.eviction->pins = {{5, 14}, {50, 55}};
  expect_reused(0, "another within");
  request.eviction = dbtrimkv(20);
  expect_reused(40, "no pin: the first one's");
}

TEST(EngineLoop, A15_K24_many_at_once_equal_alone_and_stay_within_the_pool) {
  Rng rng(11);
  Served served(dbtrimkv(16), 130, 60);
  std::vector<Request> requests;
  std::vector<std::shared_ptr<Mailbox>> mailboxes;
  for (int i = 0; i < 24; ++i) {
    const int64_t length = 1 + static_cast<int64_t>(rng.below(60));
    requests.push_back(greedy_request(random_prompt(rng, length), 1 + i % 9));
    mailboxes.push_back(std::make_shared<Mailbox>());
    served.loop.submit({requests.back()}, mailboxes.back());
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const RequestOutput answer = collect(*mailboxes[i]);
    ASSERT_FALSE(answer.error) << answer.error->message;
    EXPECT_EQ(ids_of(answer.tokens), alone(requests[i], dbtrimkv(16))) << i;
  }
  const LoopStats stats = served.loop.stats();
  EXPECT_LE(stats.blocks_peak, 130);
  EXPECT_LE(stats.snapshot_blocks, 60);
  served.end();
  EXPECT_EQ(served.engine.cache().blocks_in_use(), 0);
  EXPECT_TRUE(validate(served.engine.cache().snapshot()).empty());
}

TEST(EngineLoop, A04_cancelled_calls_give_back_their_blocks) {
  Rng rng(5);
  Served served(dbtrimkv(16), 130, 0);
  for (int i = 0; i < 60; ++i) {
    auto mailbox = std::make_shared<Mailbox>();
    const CallId call = served.loop.submit({greedy_request(random_prompt(rng, 40), 100)}, mailbox);
    if (i % 3 == 0) std::this_thread::sleep_for(milliseconds(i % 7));
    if (i % 3 == 1) mailbox->take(milliseconds(20));
    served.loop.cancel(call);
  }
  const Request last = greedy_request(random_prompt(rng, 20), 4);
  EXPECT_EQ(ids_of(ask(served.loop, last).tokens), alone(last, dbtrimkv(16)));
  served.end();
  EXPECT_EQ(served.engine.cache().blocks_in_use(), 0);
  EXPECT_TRUE(served.engine.sessions().empty());
}

TEST(EngineLoop, K25_a_snapshot_above_the_limit_is_not_kept) {
  Rng rng(2);
  Served served(dbtrimkv(20), 400, 5);
  const Request request = greedy_request(random_prompt(rng, 40), 3);
  ask(served.loop, request);
  EXPECT_EQ(ask(served.loop, request).usage.tokens.reused, 0);
  EXPECT_EQ(served.loop.stats().snapshots, 0);
}

TEST(EngineLoop, A17_what_never_fits_is_refused_and_the_next_is_served) {
  Rng rng(4);
  Served served(dbtrimkv(20), 40);
  for (int i = 0; i < 5; ++i) {
    const RequestOutput refused = ask(served.loop, greedy_request(random_prompt(rng, kRange), 10));
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(refused.error->code, ErrorCode::kCapacity);
    Request wide = greedy_request(random_prompt(rng, 100), 20);
    wide.eviction = EvictionConfig{.policy = "full"};
    EXPECT_EQ(ask(served.loop, wide).error->code, ErrorCode::kCapacity);
    EXPECT_FALSE(ask(served.loop, greedy_request(random_prompt(rng, 4), 2)).error);
  }
}

TEST(EngineLoop, waiting_is_bounded_and_stopping_ends_all) {
  Rng rng(6);
  Served served(dbtrimkv(20), 60, 0, 3);
  std::vector<std::shared_ptr<Mailbox>> mailboxes;
  const auto submit = [&] {
    mailboxes.push_back(std::make_shared<Mailbox>());
    served.loop.submit({greedy_request(random_prompt(rng, 50), 110)}, mailboxes.back());
  };
  for (int i = 0; i < 3; ++i) submit();
  try {
    submit();
    ADD_FAILURE() << "the fourth was taken";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 429);
  }
  mailboxes.pop_back();
  served.end();
  for (const auto& mailbox : mailboxes) EXPECT_TRUE(collect(*mailbox).finished());
  EXPECT_THROW(submit(), ApiError);
}

}  // namespace
}  // namespace coppice
