// Policies that are not in the table: the same path as all others, and what is left where their
// scorer fails.
#include "coppice/engine/engine_testing.h"
#include "coppice/eviction/scorer_makers.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

constexpr int64_t kRows = 6, kBudget = 12;

// Newest entries; throws while `*fails`.
class MoodyScorer final : public Scorer {
 public:
  explicit MoodyScorer(std::shared_ptr<bool> fails) : fails_(std::move(fails)) {}
  std::string_view name() const override { return "moody"; }
  ScorerNeeds needs() const override { return {.rescored = true}; }
  ScoreForm form() const override { return {.slope = -1.0f}; }
  void judge(const SequenceView&, int64_t) const override {
    if (*fails_) throw std::runtime_error("not today\nand more");
  }

 private:
  std::shared_ptr<bool> fails_;
};

EvictionConfig moody(const std::shared_ptr<bool>& fails) {
  auto info = std::make_shared<PolicyInfo>();
  info->name = "moody";
  info->scope = Scope::kHead;
  info->default_sinks = 4;
  info->make = [fails](ScorerSettings&) -> std::unique_ptr<Scorer> {
    return std::make_unique<MoodyScorer>(fails);
  };
  EvictionConfig config{.policy = "moody", .budget_entries = kBudget};
  config.custom = info;
  return config;
}

Request kept(std::vector<int32_t> prompt, int64_t max_tokens,
             std::optional<SessionId> session = {}) {
  Request request = greedy_request(std::move(prompt), max_tokens);
  request.session = session;
  request.keep_session = true;
  request.keep_failed = true;
  return request;
}

bool clean(const Engine& engine) { return validate(engine.cache().snapshot()).empty(); }

// The one output of the one request that runs to its end.
RequestOutput end_of(Engine& engine, const Request& request) {
  const RequestId id = engine.submit(request);
  return run_all(engine).at(id);
}

TEST(EngineCustomPolicy, it_chooses_as_a_row_of_the_table_would) {
  Rng rng(3);
  const std::vector<int32_t> prompt = random_prompt(rng, 40);
  Engine theirs(tiny_model(), engine_config({.policy = "streaming", .budget_entries = kBudget}));
  Engine ours(tiny_model(), engine_config(moody(std::make_shared<bool>(false))));
  const RequestOutput want = theirs.run(kept(prompt, 20)), got = ours.run(kept(prompt, 20));
  EXPECT_EQ(ids_of(got.tokens), ids_of(want.tokens));
  EXPECT_EQ(got.usage.kv.kept_entries, kBudget * kRows);
  EXPECT_EQ(got.usage.kv.policy, "moody");
  Request named = kept(prompt, 2);
  named.eviction = EvictionConfig{.policy = "moody", .budget_entries = kBudget};
  EXPECT_EQ(code_of([&] { ours.submit(named); }), ErrorCode::kNotFound);
}

TEST(EngineCustomPolicy, a_session_outlives_a_scorer_that_fails) {
  const auto fails = std::make_shared<bool>(false);
  Rng rng(4);
  Engine engine(tiny_model(), engine_config(moody(fails), 200));
  const SessionId session = *engine.run(kept(random_prompt(rng, 30), 3)).session;
  *fails = true;
  const RequestOutput failed = end_of(engine, kept(random_prompt(rng, 20), 3, session));
  ASSERT_TRUE(failed.error.has_value());
  EXPECT_EQ(failed.error->message, "not today");
  EXPECT_THROW(std::rethrow_exception(failed.error->cause), std::runtime_error);
  ASSERT_EQ(failed.session, session);
  const SequenceId sequence = *engine.sequence_of_session(session);
  EXPECT_EQ(engine.cache().entries(sequence), (kBudget + 8) * kRows);  // a chunk that was read
  EXPECT_TRUE(clean(engine));

  // What is over the budget goes first, and that fails again: no step throws, nothing is lost.
  const RequestOutput again = end_of(engine, kept({1}, 3, session));
  ASSERT_TRUE(again.error.has_value());
  ASSERT_EQ(again.session, session);
  EXPECT_EQ(engine.cache().entries(sequence), (kBudget + 8) * kRows);

  *fails = false;
  const RequestOutput fine = end_of(engine, kept({1}, 3, session));
  EXPECT_FALSE(fine.error.has_value());
  EXPECT_EQ(fine.tokens.size(), 3u);
  EXPECT_EQ(fine.usage.kv.kept_entries, kBudget * kRows);
  EXPECT_TRUE(clean(engine));
}

TEST(EngineCustomPolicy, others_in_the_batch_go_on) {
  const auto fails = std::make_shared<bool>(true);
  Rng rng(5);
  const std::vector<int32_t> prompt = random_prompt(rng, 30);
  Engine engine(tiny_model(), engine_config({.policy = "knorm", .budget_entries = kBudget}, 200));
  Request faulty = greedy_request(prompt, 5);
  faulty.eviction = moody(fails);
  const RequestId bad = engine.submit(faulty), good = engine.submit(greedy_request(prompt, 5));
  const std::map<RequestId, RequestOutput> outputs = run_all(engine);
  EXPECT_TRUE(outputs.at(bad).error.has_value());
  EXPECT_FALSE(outputs.at(bad).session.has_value());
  EXPECT_EQ(outputs.at(good).tokens.size(), 5u);
  EXPECT_EQ(engine.cache().blocks_in_use(), 0);
}

TEST(EngineCustomPolicy, without_keep_failed_a_failed_session_ends) {
  const auto fails = std::make_shared<bool>(false);
  Rng rng(6);
  Engine engine(tiny_model(), engine_config(moody(fails), 200));
  const SessionId session = *engine.run(kept(random_prompt(rng, 30), 3)).session;
  *fails = true;
  Request plain = kept(random_prompt(rng, 20), 3, session);
  plain.keep_failed = false;
  EXPECT_TRUE(end_of(engine, plain).error.has_value());
  EXPECT_TRUE(engine.sessions().empty());
  EXPECT_EQ(engine.cache().blocks_in_use(), 0);
}

TEST(EngineCustomPolicy, scores_are_those_that_are_compared) {
  Rng rng(7);
  const EvictionConfig config{.policy = "dbtrimkv", .budget_entries = kBudget};
  Engine engine(tiny_model(), engine_config(config));
  const SessionId session = *engine.run(kept(random_prompt(rng, 40), 0)).session;
  const SequenceId sequence = *engine.sequence_of_session(session);
  const EvictionPolicy policy(config, engine.cache().config());
  for (int64_t layer = 0; layer < 3; ++layer)
    for (int64_t head = 0; head < 2; ++head) {
      const KvCache::RowContent row = engine.cache().read_row(sequence, layer, head);
      const std::vector<float> scores = policy.scores(engine.cache(), sequence, layer, head);
      ASSERT_EQ(scores.size(), row.positions.size());
      for (std::size_t i = 0; i < scores.size(); ++i) {
        const auto age = static_cast<float>(39 - row.positions[i] + 1);
        EXPECT_FLOAT_EQ(scores[i], age * row.log_beta[i] + retention_tail(row.log_beta[i], 2));
      }
    }
}

}  // namespace
}  // namespace coppice
