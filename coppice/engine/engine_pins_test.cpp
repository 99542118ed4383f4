// Pinned tokens survive under every policy, whatever else runs; budgets stay exact.
#include <algorithm>

#include "coppice/engine/engine_testing.h"
#include "coppice/eviction/pins.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

constexpr int64_t kRows = 6;  // 3 layers x 2 KV heads

std::vector<PositionSpan> some_pins() { return {{6, 9}, {20, 23}, {33, 34}}; }

EvictionConfig pinned(const std::string& policy, int64_t budget,
                      std::vector<PositionSpan> pins = some_pins()) {
  EvictionConfig config;
  config.policy = policy;
  if (policy != "full") config.budget_entries = budget;
  config.pins = std::move(pins);
  return config;
}

std::vector<Request> some_requests(const std::string& policy, int64_t budget) {
  Rng rng(23);
  std::vector<Request> requests;
  for (const int64_t length : {50, 3, 36}) {
    requests.push_back(greedy_request(random_prompt(rng, length), 8));
    requests.back().eviction = pinned(policy, budget);
  }
  requests[1].eviction->pins = {{1, 3}};
  return requests;
}

// Every row of a running request holds every pinned token that was read, and no step is over
// budget.
void check_rows(const Engine& engine, RequestId id, const EvictionConfig& config) {
  const auto sequence = engine.sequence_of(id);
  if (!sequence) return;
  const KvCache& cache = engine.cache();
  const int64_t seen = cache.tokens_seen(*sequence);
  const int64_t budget = config.policy == "full" ? seen : std::min(seen, config.budget_entries);
  ASSERT_EQ(cache.entries(*sequence), budget * kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    const std::vector<int32_t> kept = cache.read_row(*sequence, row / 2, row % 2).positions;
    for (const PositionSpan& pin : clip_pins(config.pins, seen))
      for (int32_t p = pin.begin; p < pin.end; ++p)
        ASSERT_TRUE(std::find(kept.begin(), kept.end(), p) != kept.end())
            << config.policy << " row " << row << " position " << p << " of " << seen;
  }
}

std::vector<std::vector<int32_t>> watched(Engine& engine, const std::vector<Request>& requests) {
  std::map<RequestId, std::size_t> places;
  std::vector<std::vector<int32_t>> answers(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) places[engine.submit(requests[i])] = i;
  while (engine.has_work()) {
    for (const RequestOutput& output : engine.step()) {
      EXPECT_FALSE(output.error) << output.error->message;
      for (const int32_t id : ids_of(output.tokens)) answers[places[output.id]].push_back(id);
    }
    for (const auto& [id, place] : places) check_rows(engine, id, *requests[place].eviction);
    if (::testing::Test::HasFailure()) break;
  }
  const std::vector<std::string> faults = validate(engine.cache().snapshot());
  EXPECT_TRUE(faults.empty()) << faults.front();
  return answers;
}

// From a budget that holds the sinks and the pins alone up to one that evicts little.
TEST(EnginePins, survive_every_policy_at_every_budget_batched_and_alone) {
  for (const PolicyInfo& info : policies()) {
    const std::shared_ptr<Model> model = model_for(info);
    for (const int64_t budget : {11, 12, 20}) {
      const std::vector<Request> requests = some_requests(info.name, budget);
      Engine engine(model, engine_config());
      const auto together = watched(engine, requests);
      if (HasFailure()) return;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        Engine alone(model, engine_config());
        ASSERT_EQ(watched(alone, {requests[i]}).front(), together[i]) << info.name << " " << budget;
      }
    }
  }
}

TEST(EnginePins, survive_chunks_of_any_size) {
  const std::shared_ptr<Model> model = tiny_model();
  for (const char* policy : {"dbtrimkv", "trimkv", "streaming", "adakv", "tova"}) {
    for (const int64_t chunk : {1, 7, 64}) {
      std::vector<Request> requests = some_requests(policy, 14);
      for (Request& request : requests) request.chunk_tokens = chunk;
      Engine engine(model, engine_config());
      watched(engine, requests);
      if (HasFailure()) return;
    }
  }
}

TEST(EnginePins, change_what_is_kept_only_where_there_are_some) {
  const std::shared_ptr<Model> model = tiny_model();
  Rng rng(2);
  Request request = greedy_request(random_prompt(rng, 60), 30);
  const auto run = [&](std::vector<PositionSpan> pins) {
    request.eviction = pinned("dbtrimkv", 14, std::move(pins));
    Engine engine(model, engine_config());
    return ids_of(engine.run(request).tokens);
  };
  EXPECT_EQ(run({{0, 4}}), run({}));  // the sinks
  EXPECT_NE(run({{20, 30}}), run({}));
}

TEST(EnginePins, A11_pins_that_do_not_fit_are_refused_and_the_next_request_is_served) {
  Engine engine(tiny_model(), engine_config());
  Rng rng(9);
  Request request = greedy_request(random_prompt(rng, 40), 4);
  request.eviction = pinned("dbtrimkv", 10);
  EXPECT_EQ(code_of([&] { engine.submit(request); }), ErrorCode::kInvalidArgument);
  request.eviction->pins = {{5, 2}};
  EXPECT_EQ(code_of([&] { engine.submit(request); }), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(engine.has_work());
  request.eviction = pinned("dbtrimkv", 11);
  EXPECT_EQ(engine.run(request).tokens.size(), 4u);
}

TEST(EnginePins, a_session_keeps_those_it_has_read_and_takes_more_behind_them) {
  Engine engine(tiny_model(), engine_config());
  Rng rng(4);
  Request first = greedy_request(random_prompt(rng, 30), 3);
  first.eviction = pinned("dbtrimkv", 16, {{6, 9}});
  first.keep_session = true;
  const SessionId session = *engine.run(first).session;
  Request next = greedy_request(random_prompt(rng, 30), 3);
  next.session = session;
  for (const std::vector<PositionSpan>& pins :
       {std::vector<PositionSpan>{}, {{6, 10}}, {{6, 9}, {31, 40}}}) {
    next.eviction = pinned("dbtrimkv", 16, pins);
    EXPECT_EQ(code_of([&] { engine.submit(next); }), ErrorCode::kInvalidArgument);
  }
  next.eviction = pinned("dbtrimkv", 16, {{6, 9}, {33, 38}});  // 32 tokens were read
  next.keep_session = true;
  const RequestOutput output = engine.run(next);
  const auto sequence = *engine.sequence_of_session(*output.session);
  for (int64_t row = 0; row < kRows; ++row) {
    const auto kept = engine.cache().read_row(sequence, row / 2, row % 2).positions;
    for (const int32_t p : {6, 7, 8, 33, 34, 35, 36, 37})
      EXPECT_TRUE(std::find(kept.begin(), kept.end(), p) != kept.end()) << row << " " << p;
  }
}

}  // namespace
}  // namespace coppice
