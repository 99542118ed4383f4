// Budgets that change while a request is on its way.
#include "coppice/engine/engine_testing.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

constexpr int64_t kRows = 6;  // 3 layers x 2 KV heads

EvictionConfig with_budget(const std::string& policy, int64_t budget) {
  return {.policy = policy, .budget_entries = budget};
}

int64_t entries_of(const Engine& engine, RequestId id) {
  return engine.cache().entries(*engine.sequence_of(id));
}

TEST(EngineBudget, K13_falls_at_once_and_rises_as_the_text_grows) {
  for (const PolicyInfo& info : policies()) {
    if (info.name == "full") continue;
    Engine engine(model_for(info), engine_config(with_budget(info.name, 30)));
    Rng rng(3);
    const RequestId id = engine.submit(greedy_request(random_prompt(rng, 40), 40));
    for (int i = 0; i < 8; ++i) engine.step();
    ASSERT_EQ(entries_of(engine, id), 30 * kRows) << info.name;
    engine.change_eviction(id, with_budget(info.name, 11));
    ASSERT_EQ(entries_of(engine, id), 11 * kRows) << info.name;
    const std::vector<std::string> faults = validate(engine.cache().snapshot());
    ASSERT_TRUE(faults.empty()) << faults.front();
    engine.step();
    ASSERT_EQ(entries_of(engine, id), 11 * kRows) << info.name;
    engine.change_eviction(id, with_budget(info.name, 20));
    ASSERT_EQ(entries_of(engine, id), 11 * kRows) << info.name;
    for (int i = 1; i <= 12; ++i) {
      engine.step();
      ASSERT_EQ(entries_of(engine, id), std::min(11 + i, 20) * kRows) << info.name;
    }
    const RequestOutput last = run_all(engine)[id];
    EXPECT_EQ(last.finish_reason, FinishReason::kLength);
    EXPECT_EQ(last.usage.kv.budget_entries, 20 * kRows);
    EXPECT_EQ(last.usage.kv.kept_entries + last.usage.kv.evicted_entries, 79 * kRows);
  }
}

TEST(EngineBudget, a_request_that_waits_starts_with_the_new_one_and_its_session_fits_it) {
  Engine engine(tiny_model(), engine_config(with_budget("dbtrimkv", 30)));
  Rng rng(4);
  Request first = greedy_request(random_prompt(rng, 40), 2);
  first.keep_session = true;
  Request next = greedy_request(random_prompt(rng, 5), 4);
  next.session = *engine.run(first).session;
  const RequestId id = engine.submit(next);
  engine.change_eviction(id, with_budget("dbtrimkv", 10));
  EXPECT_EQ(engine.cache().blocks_in_use(), 6);  // a block for each row of 10 entries in the mean
  const RequestOutput output = run_all(engine)[id];
  EXPECT_FALSE(output.error);
  EXPECT_EQ(output.usage.kv.kept_entries, 10 * kRows);
}

// Bit for bit what a request alone gets whose budget changes at the same token.
TEST(EngineBudget, neighbours_of_a_changed_request_do_not_notice) {
  const std::shared_ptr<Model> model = tiny_model();
  const EngineConfig config = engine_config(with_budget("dbtrimkv", 16));
  Rng rng(6);
  const Request exact = greedy_request(random_prompt(rng, 30), 30);
  const Request other = greedy_request(random_prompt(rng, 30), 30);
  Engine alone(model, config);
  const std::vector<int32_t> expected = ids_of(alone.run(exact).tokens);
  Engine engine(model, config);
  const RequestId id = engine.submit(exact), changed = engine.submit(other);
  std::vector<int32_t> got;
  for (int step = 0; engine.has_work(); ++step) {
    for (const RequestOutput& output : engine.step())
      if (output.id == id)
        for (const int32_t token : ids_of(output.tokens)) got.push_back(token);
    if (step < 20) engine.change_eviction(changed, with_budget("dbtrimkv", 8 + step % 9));
  }
  EXPECT_EQ(got, expected);
}

TEST(EngineBudget, what_cannot_be_is_refused_and_changes_nothing) {
  const EngineConfig config = engine_config(with_budget("dbtrimkv", 16), 50);
  Engine engine(tiny_model(), config);
  Rng rng(8);
  const RequestId id = engine.submit(greedy_request(random_prompt(rng, 40), 60));
  const RequestId beside = engine.submit(greedy_request(random_prompt(rng, 40), 60));
  for (int i = 0; i < 9; ++i) engine.step();
  ASSERT_TRUE(engine.sequence_of(beside));
  const int64_t before = entries_of(engine, id);
  EXPECT_EQ(code_of([&] { engine.change_eviction(id, with_budget("dbtrimkv", 90)); }),
            ErrorCode::kCapacity);
  EXPECT_EQ(code_of([&] { engine.change_eviction(id, with_budget("knorm", 12)); }),
            ErrorCode::kInvalidArgument);
  EvictionConfig pinned = with_budget("dbtrimkv", 16);
  pinned.pins = {{3, 5}};
  EXPECT_EQ(code_of([&] { engine.change_eviction(id, pinned); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { engine.change_eviction(999, with_budget("dbtrimkv", 12)); }),
            ErrorCode::kNotFound);
  EXPECT_EQ(entries_of(engine, id), before);
  for (const auto& [done, output] : run_all(engine)) {
    EXPECT_FALSE(output.error);
    EXPECT_EQ(output.usage.kv.kept_entries, 16 * kRows);
  }
}

}  // namespace
}  // namespace coppice
