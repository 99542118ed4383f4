// What holds for every policy, whatever the load: results belong to a request alone, budgets are
// exact after every step, nothing leaks.
#include <set>

#include "coppice/engine/engine_testing.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

constexpr int64_t kRows = 6;  // 3 layers x 2 KV heads

std::vector<Request> mixed_requests() {
  Rng rng(17);
  std::vector<Request> requests;
  for (const int64_t length : {3, 41, 20, 7, 1}) {
    requests.push_back(greedy_request(random_prompt(rng, length), 25));
  }
  requests[1].sampling.temperature = 1.0;
  requests[1].sampling.seed = 5;
  requests[1].sampling.top_k = 64;
  requests[2].sampling.frequency_penalty = 1.05;
  requests[3].sampling.temperature = 0.8;
  requests[3].sampling.top_p = 0.9;
  requests[3].sampling.seed = 6;
  requests[3].sampling.repetition_penalty = 1.2;
  return requests;
}

EvictionConfig with_budget(const std::string& policy, int64_t budget) {
  EvictionConfig config;
  config.policy = policy;
  if (policy != "full") config.budget_entries = budget;
  return config;
}

TEST(EngineLaws, S12_S13_K14_batched_equals_alone_for_every_policy) {
  for (const PolicyInfo& info : policies()) {
    const std::shared_ptr<Model> model = model_for(info);
    std::vector<std::vector<int32_t>> alone;
    for (const Request& request : mixed_requests()) {
      Engine engine(model, engine_config(with_budget(info.name, 10)));
      alone.push_back(ids_of(engine.run(request).tokens));
    }
    for (const int64_t at_once : {2, 16}) {
      EngineConfig config = engine_config(with_budget(info.name, 10));
      config.scheduler.max_sequences = at_once;
      Engine engine(model, config);
      std::vector<RequestId> ids;
      for (const Request& request : mixed_requests()) ids.push_back(engine.submit(request));
      auto outputs = run_all(engine);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(ids_of(outputs[ids[i]].tokens), alone[i]) << info.name << ", request " << i;
        EXPECT_EQ(outputs[ids[i]].tokens.size(), 25u);
      }
    }
  }
}

TEST(EngineLaws, generations_are_not_constant) {  // or the other laws would prove little
  Engine engine(tiny_model(), engine_config());
  std::set<int32_t> seen;
  for (const Request& request : mixed_requests()) {
    for (const int32_t id : ids_of(engine.run(request).tokens)) seen.insert(id);
  }
  EXPECT_GT(seen.size(), 15u);
}

TEST(EngineLaws, chunked_prefill_equals_one_pass) {
  const std::shared_ptr<Model> model = tiny_model();
  for (const Request& request : mixed_requests()) {
    std::vector<std::vector<int32_t>> results;
    for (const int64_t chunk : {1, 3, 7, 100}) {
      Request chunked = request;
      chunked.chunk_tokens = chunk;
      Engine engine(model, engine_config());
      results.push_back(ids_of(engine.run(chunked).tokens));
      EXPECT_EQ(results.back(), results.front()) << chunk;
    }
  }
}

TEST(EngineLaws, a_budget_at_the_length_gives_exactly_the_full_cache_tokens) {
  const std::shared_ptr<Model> model = tiny_model();
  for (const Request& request : mixed_requests()) {
    const int64_t length = static_cast<int64_t>(request.prompt.size()) + 24;  // read in all
    Engine full(model, engine_config());
    const std::vector<int32_t> expected = ids_of(full.run(request).tokens);
    for (const PolicyInfo& info : policies()) {
      const std::shared_ptr<Model> its_model = model_for(info);
      for (const int64_t budget : {length, 2 * length}) {
        Request bounded = request;
        bounded.eviction = with_budget(info.name, budget);
        if (info.name != "full") {  // as small as they are here, the defaults may not fit
          bounded.eviction->sinks = 0;
          bounded.eviction->recent = 0;
        }
        Engine engine(its_model, engine_config());
        const RequestOutput output = engine.run(bounded);
        EXPECT_EQ(ids_of(output.tokens), expected) << info.name << ' ' << budget;
        EXPECT_EQ(output.usage.kv.evicted_entries, 0);
      }
    }
  }
}

// The engine's invariants, from outside.
class Watcher final {
 public:
  explicit Watcher(const Engine& engine) : engine_(engine) {}

  void check(const std::map<RequestId, int64_t>& budgets) {
    const KvCache& cache = engine_.cache();
    ASSERT_LE(cache.blocks_in_use(), engine_.config().max_blocks);
    const std::vector<std::string> faults = validate(cache.snapshot());
    ASSERT_TRUE(faults.empty()) << faults.front();
    for (const auto& [id, budget] : budgets) {
      if (const auto sequence = engine_.sequence_of(id)) check_kept(*sequence, budget);
    }
  }
  void check_kept(SequenceId sequence, int64_t budget) {
    const KvCache& cache = engine_.cache();
    const int64_t seen = cache.tokens_seen(sequence) * kRows;
    const int64_t most = budget == EvictionConfig::kUnbounded ? seen : budget * kRows;
    ASSERT_EQ(cache.tokens_in_pass(sequence), 0);
    ASSERT_EQ(cache.entries(sequence), std::min(seen, most));
  }

 private:
  const Engine& engine_;
};

Request random_request(Rng& rng, const std::vector<SessionId>& sessions) {
  Request request =
      greedy_request(random_prompt(rng, 1 + int64_t(rng.below(40))), int64_t(rng.below(12)));
  request.sampling.temperature = rng.below(2) == 0 ? 0.0 : 1.0;
  request.chunk_tokens = 1 + int64_t(rng.below(12));
  request.keep_session = rng.below(3) == 0;
  if (!sessions.empty() && rng.below(2) == 0) {
    request.session = sessions[rng.below(sessions.size())];
    return request;  // with the session's own policy
  }
  const std::vector<std::string> names = policies_for("retention");
  request.eviction = with_budget(names[rng.below(names.size())], 6 + int64_t(rng.below(12)));
  return request;
}

TEST(EngineLaws, K20_K24_reused_blocks_leak_nothing_and_the_pool_keeps_its_limit) {
  const std::shared_ptr<Model> model = tiny_model();
  EngineConfig config = engine_config(with_budget("dbtrimkv", 12), 60);  // about two sequences
  config.scheduler.max_sequences = 2;
  Engine engine(model, config);
  Rng rng(5);
  std::map<RequestId, std::vector<int32_t>> expected, got;
  for (int64_t i = 0; i < 40; ++i) {
    const Request request = greedy_request(random_prompt(rng, 1 + i * 2), 6);
    Engine alone(model, config);
    const std::vector<int32_t> ids = ids_of(alone.run(request).tokens);
    expected[engine.submit(request)] = ids;
  }
  while (engine.has_work()) {
    for (const RequestOutput& output : engine.step()) {
      ASSERT_FALSE(output.error.has_value()) << output.error->message;
      for (const int32_t id : ids_of(output.tokens)) got[output.id].push_back(id);
    }
    ASSERT_LE(engine.cache().blocks_in_use(), config.max_blocks);
  }
  EXPECT_EQ(got, expected);
  EXPECT_EQ(engine.cache().blocks_in_use(), 0);
}

TEST(EngineLaws, K13_K32_budgets_are_exact_and_nothing_leaks_under_random_loads) {
  const std::shared_ptr<Model> model = tiny_model();
  for (uint64_t round = 0; round < 4; ++round) {
    Rng rng(round);
    EngineConfig config = engine_config(with_budget("dbtrimkv", 8), 160);
    config.scheduler.max_sequences = 4;
    config.scheduler.max_batch_tokens = 20;
    Engine engine(model, config);
    Watcher watcher(engine);
    std::map<RequestId, int64_t> budgets;         // of requests
    std::map<SessionId, int64_t> session_budget;  // of sessions
    std::map<RequestId, SessionId> continued;
    int finished = 0, refused = 0;
    for (int step = 0; step < 260; ++step) {
      if (step < 200 && rng.below(2) == 0) {
        const Request request = random_request(rng, engine.sessions());
        try {
          const RequestId id = engine.submit(request);
          budgets[id] = request.session ? session_budget.at(*request.session)
                                        : request.eviction->budget_entries;
        } catch (const Error& e) {  // the session is at the end of its positions, or of the pool
          ASSERT_EQ(e.code(), ErrorCode::kCapacity);
          ++refused;
        }
      }
      for (const RequestOutput& output : engine.step()) {
        if (!output.finished()) continue;
        ++finished;
        if (output.session) {
          session_budget[*output.session] = budgets.at(output.id);
          watcher.check_kept(*engine.sequence_of_session(*output.session), budgets.at(output.id));
        }
        budgets.erase(output.id);
      }
      watcher.check(budgets);
      if (rng.below(12) == 0 && !budgets.empty()) {  // a client leaves
        const RequestId id = std::next(budgets.begin(), int64_t(rng.below(budgets.size())))->first;
        ASSERT_TRUE(engine.cancel(id));
        budgets.erase(id);
        watcher.check(budgets);
      }
      const std::vector<SessionId> sessions = engine.sessions();
      if (sessions.size() > 2 || (step >= 200 && !sessions.empty())) {
        engine.drop_session(sessions[rng.below(sessions.size())]);
      } else if (!sessions.empty() && rng.below(10) == 0) {
        try {
          const SessionId copy = engine.fork_session(sessions[0]);
          session_budget[copy] = session_budget.at(sessions[0]);
        } catch (const Error& e) {
          ASSERT_EQ(e.code(), ErrorCode::kCapacity);
        }
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    run_all(engine);
    for (const SessionId id : engine.sessions()) engine.drop_session(id);
    EXPECT_EQ(engine.cache().blocks_in_use(), 0) << round;
    EXPECT_TRUE(engine.cache().sequences().empty());
    EXPECT_GT(finished, 30);
    EXPECT_LT(refused, 60);
  }
}

TEST(EngineLaws, the_peak_is_budget_plus_one_chunk_for_any_length) {
  const std::shared_ptr<Model> model = tiny_model();
  Rng rng(3);
  for (const int64_t length : {30, 150}) {
    Engine engine(model, engine_config(with_budget("dbtrimkv", 8)));
    const RequestOutput output = engine.run(greedy_request(random_prompt(rng, length), 5));
    EXPECT_EQ(output.usage.kv.peak_entries, (8 + 8) * kRows);
    EXPECT_EQ(output.usage.kv.kept_entries, 8 * kRows);
    EXPECT_EQ(output.usage.kv.evicted_entries, (length + 4 - 8) * kRows);
    EXPECT_LE(output.usage.kv.bytes_peak,
              worst_case_blocks(engine.cache().config(), engine.config().eviction, 8,
                                EvictionConfig::kUnbounded) *
                  engine.cache().config().block_bytes());
  }
}

TEST(EngineLaws, compact_positions_run_past_the_trained_range_in_flat_memory) {
  const std::shared_ptr<Model> model = tiny_model();
  for (const std::string policy : {"streaming", "dbtrimkv"}) {
    EngineConfig config = engine_config(with_budget(policy, 12));
    config.max_blocks =
        worst_case_blocks(cache_config(model->args(), at::kFloat, at::kCPU), config.eviction,
                          config.chunk_tokens, EvictionConfig::kUnbounded);
    Rng rng(8);
    const Request request = greedy_request(random_prompt(rng, 3 * kRange), 2 * kRange);
    EXPECT_EQ(code_of([&] { Engine(model, config).submit(request); }), ErrorCode::kCapacity);
    config.compact_positions = true;
    Engine engine(model, config);
    const RequestOutput output = engine.run(request);
    EXPECT_EQ(output.tokens.size(), std::size_t(2 * kRange));
    EXPECT_EQ(output.finish_reason, FinishReason::kLength);
    EXPECT_EQ(output.usage.kv.kept_entries, 12 * kRows);
    EXPECT_LE(output.usage.kv.bytes_peak, output.usage.kv.bytes_bound);
  }
}

}  // namespace
}  // namespace coppice
