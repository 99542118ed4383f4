// Sessions, cancelling, and faults in the middle of a step.
#include <c10/core/InferenceMode.h>

#include "coppice/attention/paged_backend.h"
#include "coppice/engine/engine_testing.h"
#include "coppice/engine/pass.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

constexpr int64_t kRows = 6;

EvictionConfig dbtrimkv(int64_t budget) {
  return {.policy = "dbtrimkv", .budget_entries = budget, .sinks = 2};
}

Request kept(std::vector<int32_t> prompt, int64_t max_tokens,
             std::optional<SessionId> session = {}) {
  Request request = greedy_request(std::move(prompt), max_tokens);
  request.session = session;
  request.keep_session = true;
  return request;
}

bool clean(const Engine& engine) { return validate(engine.cache().snapshot()).empty(); }

TEST(EngineSessions, a_continued_session_equals_one_long_request) {
  Rng rng(1);
  const std::vector<int32_t> first = random_prompt(rng, 9), second = random_prompt(rng, 6);
  Engine engine(tiny_model(), engine_config());
  const RequestOutput one = engine.run(kept(first, 5));
  const RequestOutput two = engine.run(kept(second, 8, one.session));
  std::vector<int32_t> whole = first;
  for (const int32_t id : ids_of(one.tokens)) whole.push_back(id);
  whole.insert(whole.end(), second.begin(), second.end());
  Engine fresh(tiny_model(), engine_config());
  EXPECT_EQ(ids_of(two.tokens), ids_of(fresh.run(greedy_request(whole, 8)).tokens));
  EXPECT_EQ(two.session, one.session);
  EXPECT_EQ(two.usage.tokens.prompt, 20);
  EXPECT_EQ(two.usage.tokens.reused, 13);  // the last token drawn had not been read
  EXPECT_EQ(engine.session_tokens(*two.session).size(), 28u);
}

TEST(EngineSessions, without_keep_session_the_session_ends_with_the_request) {
  Engine engine(tiny_model(), engine_config());
  const SessionId session = *engine.run(kept({1, 2}, 2)).session;
  Request last = greedy_request({3}, 2);
  last.session = session;
  EXPECT_FALSE(engine.run(last).session.has_value());
  EXPECT_TRUE(engine.sessions().empty());
  EXPECT_EQ(engine.cache().blocks_in_use(), 0);
}

TEST(EngineSessions, an_unread_token_is_enough_to_go_on) {
  Engine engine(tiny_model(), engine_config());
  const SessionId session = *engine.run(kept({1, 2}, 2)).session;
  EXPECT_EQ(engine.run(kept({}, 3, session)).tokens.size(), 3u);
  const SessionId read = *engine.run(kept({1, 2}, 0)).session;
  EXPECT_EQ(code_of([&] { engine.submit(kept({}, 3, read)); }), ErrorCode::kInvalidArgument);
}

TEST(EngineSessions, unknown_and_busy_sessions_are_refused) {
  Engine engine(tiny_model(), engine_config());
  EXPECT_EQ(code_of([&] { engine.submit(kept({1}, 1, 99)); }), ErrorCode::kNotFound);
  EXPECT_EQ(code_of([&] { engine.drop_session(99); }), ErrorCode::kNotFound);
  const SessionId session = *engine.run(kept({1, 2}, 2)).session;
  engine.submit(kept({3}, 1, session));
  EXPECT_EQ(code_of([&] { engine.submit(kept({4}, 1, session)); }), ErrorCode::kNotFound);
  EXPECT_EQ(code_of([&] { engine.drop_session(session); }), ErrorCode::kNotFound);
  run_all(engine);
  engine.drop_session(session);
}

TEST(EngineSessions, the_policy_stays_and_the_budget_may_change) {
  Engine engine(tiny_model(), engine_config(dbtrimkv(12)));
  Rng rng(3);
  const SessionId session = *engine.run(kept(random_prompt(rng, 40), 0)).session;
  Request other = kept({1}, 1, session);
  other.eviction = EvictionConfig{.policy = "streaming", .budget_entries = 12};
  EXPECT_EQ(code_of([&] { engine.submit(other); }), ErrorCode::kInvalidArgument);
  Request less = kept({1}, 1, session);
  less.eviction = dbtrimkv(6);
  const RequestOutput output = engine.run(less);
  EXPECT_EQ(output.usage.kv.kept_entries, 6 * kRows);
  EXPECT_EQ(output.usage.kv.evicted_entries, (41 - 6) * kRows);
}

TEST(EngineSessions, K16_two_questions_on_one_compressed_context) {
  Engine engine(tiny_model(), engine_config(dbtrimkv(10)));
  Rng rng(4);
  const std::vector<int32_t> context = random_prompt(rng, 60);
  const std::vector<int32_t> one = random_prompt(rng, 5), two = random_prompt(rng, 7);
  const SessionId compressed = *engine.run(kept(context, 0)).session;
  const auto ask = [&](const std::vector<int32_t>& question) {
    Request request = greedy_request(question, 10);
    request.session = engine.fork_session(compressed);
    return ids_of(engine.run(request).tokens);
  };
  const std::vector<int32_t> first = ask(one), second = ask(two);
  EXPECT_EQ(ask(one), first);  // the state is unchanged between questions
  EXPECT_EQ(engine.cache().tokens_seen(*engine.sequence_of_session(compressed)), 60);
  for (const auto& [question, answer] : {std::pair{one, first}, std::pair{two, second}}) {
    Engine fresh(tiny_model(), engine_config(dbtrimkv(10)));
    Request request = greedy_request(question, 10);
    request.session = *fresh.run(kept(context, 0)).session;
    EXPECT_EQ(ids_of(fresh.run(request).tokens), answer);
  }
}

TEST(EngineSessions, K35_a_chat_past_its_budget_and_its_whole_history_are_both_accepted) {
  Engine engine(tiny_model(), engine_config(dbtrimkv(8)));
  Rng rng(5);
  std::optional<SessionId> session;
  RequestOutput turn;
  for (int i = 0; i < 6; ++i) {
    turn = engine.run(kept(random_prompt(rng, 10), 6, session));
    session = turn.session;
    EXPECT_LE(turn.usage.kv.kept_entries, 8 * kRows);
  }
  EXPECT_EQ(turn.usage.kv.kept_entries, 8 * kRows);
  Engine other(tiny_model(), engine_config(dbtrimkv(8)));
  const RequestOutput whole = other.run(greedy_request(engine.session_tokens(*session), 6));
  EXPECT_EQ(whole.tokens.size(), 6u);
  EXPECT_EQ(whole.usage.tokens.prompt, 96);
  EXPECT_EQ(whole.usage.kv.kept_entries, 8 * kRows);
}

TEST(EngineSessions, sessions_that_fill_the_pool_give_an_error_and_no_deadlock) {
  Engine engine(tiny_model(), engine_config({.policy = "full"}, 4 * kRows));
  const SessionId session = *engine.run(kept(std::vector<int32_t>(40, 3), 0)).session;
  EXPECT_EQ(code_of([&] { engine.fork_session(session); }), ErrorCode::kCapacity);
  const RequestId id = engine.submit(greedy_request(std::vector<int32_t>(20, 3), 2));
  auto outputs = run_all(engine);
  ASSERT_TRUE(outputs[id].error.has_value());
  EXPECT_EQ(outputs[id].error->code, ErrorCode::kCapacity);
  EXPECT_EQ(outputs[id].finish_reason, FinishReason::kError);
  EXPECT_EQ(engine.run(kept({1}, 1, session)).tokens.size(), 1u);
  engine.drop_session(session);
  EXPECT_EQ(engine.run(greedy_request(std::vector<int32_t>(20, 3), 2)).tokens.size(), 2u);
}

TEST(EngineSessions, A04_cancel_frees_blocks_at_once_and_the_next_turn_is_clean) {
  Engine engine(tiny_model(), engine_config(dbtrimkv(10)));
  Rng rng(7);
  const std::vector<int32_t> prompt = random_prompt(rng, 30);
  const std::vector<int32_t> expected = ids_of(engine.run(greedy_request(prompt, 9)).tokens);
  for (int steps = 0; steps < 8; ++steps) {  // waiting, in prefill, in decode
    const RequestId id = engine.submit(greedy_request(prompt, 9));
    for (int i = 0; i < steps; ++i) engine.step();
    EXPECT_TRUE(engine.cancel(id));
    EXPECT_FALSE(engine.cancel(id));
    EXPECT_EQ(engine.cache().blocks_in_use(), 0);
    EXPECT_FALSE(engine.has_work());
    EXPECT_EQ(ids_of(engine.run(greedy_request(prompt, 9)).tokens), expected);
  }
}

TEST(EngineSessions, cancel_and_keep_keeps_what_was_read) {
  Engine engine(tiny_model(), engine_config());
  Rng rng(8);
  const std::vector<int32_t> prompt = random_prompt(rng, 20);
  const std::vector<int32_t> expected = ids_of(engine.run(greedy_request(prompt, 9)).tokens);
  const RequestId id = engine.submit(greedy_request(prompt, 9));
  engine.step();  // 8 of 20 tokens
  const SessionId session = *engine.cancel_and_keep(id);
  EXPECT_EQ(engine.session_tokens(session), prompt);
  EXPECT_EQ(engine.cache().tokens_seen(*engine.sequence_of_session(session)), 8);
  EXPECT_EQ(ids_of(engine.run(kept({}, 9, session)).tokens), expected);
  EXPECT_FALSE(engine.cancel_and_keep(id).has_value());
}

// A batch of three; what is wrong with one must not touch the others.
struct FaultRun {
  std::vector<RequestOutput> outputs;
  bool clean = true;
};

FaultRun run_with_fault(int64_t throw_on, int64_t poison, bool with_bad) {
  auto model = std::make_shared<FaultyModel>(tiny_model());
  model->throw_on = throw_on;
  model->poison = poison;
  Engine engine(model, engine_config(dbtrimkv(10)));
  Rng rng(9);
  std::vector<Request> requests;
  for (int i = 0; i < 2; ++i) {
    Request request = greedy_request({}, 12);
    for (int k = 0; k < 14; ++k) request.prompt.push_back(int32_t(rng.below(90)));
    request.sampling.logit_bias = {{95, -100.0}};  // the token of the fault
    request.sampling.temperature = 1.0;
    request.sampling.seed = 7;
    requests.push_back(request);
  }
  std::vector<RequestId> ids;
  ids.push_back(engine.submit(requests[0]));
  if (with_bad) {
    Request bad = kept({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 95}, 5);  // in its second chunk
    ids.push_back(engine.submit(bad));
  }
  ids.push_back(engine.submit(requests[1]));
  std::map<RequestId, RequestOutput> joined;
  FaultRun result;
  while (engine.has_work()) {
    for (RequestOutput& output : engine.step()) {
      RequestOutput& whole = joined[output.id];
      whole.tokens.insert(whole.tokens.end(), output.tokens.begin(), output.tokens.end());
      whole.error = output.error;
      whole.finish_reason = output.finish_reason;
    }
    result.clean = result.clean && clean(engine);
  }
  EXPECT_EQ(engine.cache().blocks_in_use(), 0);  // the failed session was dropped
  EXPECT_TRUE(engine.sessions().empty());
  for (const RequestId id : ids) result.outputs.push_back(joined[id]);
  return result;
}

TEST(EngineFaults, S06_a_failing_request_does_not_disturb_the_others) {
  const FaultRun undisturbed = run_with_fault(-1, -1, false);
  for (const bool throws : {true, false}) {
    const FaultRun run = run_with_fault(throws ? 95 : -1, throws ? -1 : 95, true);
    EXPECT_TRUE(run.clean);
    ASSERT_TRUE(run.outputs[1].error.has_value());
    EXPECT_EQ(run.outputs[1].finish_reason, FinishReason::kError);
    EXPECT_EQ(run.outputs[1].error->code, ErrorCode::kInternal);
    EXPECT_TRUE(run.outputs[1].tokens.empty());
    for (const auto& [with, without] : {std::pair{0, 0}, std::pair{2, 1}}) {
      EXPECT_FALSE(run.outputs[std::size_t(with)].error.has_value());
      EXPECT_EQ(ids_of(run.outputs[std::size_t(with)].tokens),
                ids_of(undisturbed.outputs[std::size_t(without)].tokens));
    }
  }
}

TEST(EngineFaults, rollback_leaves_the_cache_as_before) {
  auto model = std::make_shared<FaultyModel>(tiny_model());
  model->throw_on = 95;
  const CacheConfig sizes = [&] {
    CacheConfig config = cache_config(model->args(), at::kFloat, at::kCPU);
    config.max_blocks = 500;
    return config;
  }();
  KvCache cache(sizes);
  PagedBackend backend(cache);
  EvictionPolicy policy(dbtrimkv(10), sizes);
  const SequenceId one = cache.add_sequence(), two = cache.add_sequence();
  const std::vector<int32_t> good = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, bad = {1, 95};
  const PassPart first{one, good, &policy};
  const c10::InferenceMode inference;
  forward_pass(*model, backend, cache, std::span(&first, 1));
  commit_pass(cache, first);
  const int64_t blocks = cache.blocks_in_use(), entries = cache.entries(one);
  const std::vector<int32_t> before = cache.read_row(one, 1, 0).positions;
  const at::Tensor keys = cache.read_row(one, 1, 0).k.clone();
  const PassPart parts[] = {{one, good, &policy}, {two, bad, &policy}};
  EXPECT_THROW(forward_pass(*model, backend, cache, parts), Error);
  EXPECT_EQ(cache.blocks_in_use(), blocks);
  EXPECT_EQ(cache.entries(one), entries);
  EXPECT_EQ(cache.tokens_in_pass(one), 0);
  EXPECT_EQ(cache.tokens_seen(two), 0);
  EXPECT_EQ(cache.read_row(one, 1, 0).positions, before);
  EXPECT_TRUE(cache.read_row(one, 1, 0).k.equal(keys));
  EXPECT_TRUE(validate(cache.snapshot()).empty());
}

TEST(EngineFaults, run_throws_the_error_of_its_request) {
  auto model = std::make_shared<FaultyModel>(tiny_model());
  model->throw_on = 95;
  Engine engine(model, engine_config());
  EXPECT_EQ(code_of([&] { engine.run(greedy_request({1, 95}, 3)); }), ErrorCode::kInternal);
  EXPECT_FALSE(engine.has_work());
  EXPECT_EQ(engine.cache().blocks_in_use(), 0);
}

}  // namespace
}  // namespace coppice
