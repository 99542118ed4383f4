// Prompts that are read some layers at a time while others answer.
#include <functional>

#include "coppice/engine/engine_testing.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

EngineConfig sliced(const std::string& policy, int64_t between, int64_t chunk = 12) {
  EngineConfig config = engine_config({.policy = policy});
  if (policy != "full") config.eviction.budget_entries = 10;
  config.chunk_tokens = chunk;
  config.scheduler.max_tokens_between = between;
  return config;
}

Request long_request(uint64_t seed) {
  Rng rng(seed);
  return greedy_request(random_prompt(rng, 40), 9);
}

Request short_request() { return greedy_request({5, 6, 7}, 60); }

struct Both {
  std::vector<int32_t> talker, reader;
  int64_t tokens_between = 0;  // of the talker, while the reader's prompt was read
};

Both run_both(Engine& engine, const Request& reading) {
  const RequestId talker = engine.submit(short_request());
  engine.step();
  const RequestId reader = engine.submit(reading);
  Both both;
  while (engine.has_work()) {
    for (const RequestOutput& output : engine.step()) {
      EXPECT_FALSE(output.error) << output.error->message;
      const std::vector<int32_t> ids = ids_of(output.tokens);
      auto& of = output.id == reader ? both.reader : both.talker;
      of.insert(of.end(), ids.begin(), ids.end());
      if (output.id == talker && both.reader.empty()) ++both.tokens_between;
    }
    EXPECT_LE(engine.cache().blocks_in_use(), engine.config().max_blocks);
  }
  EXPECT_EQ(engine.cache().blocks_in_use(), 0);
  return both;
}

TEST(EngineSlices, a_prompt_read_some_layers_at_a_time_is_answered_as_one_read_alone) {
  for (const PolicyInfo& info : policies()) {
    const std::shared_ptr<Model> model = model_for(info);
    Engine alone(model, sliced(info.name, 1));
    const std::vector<int32_t> reader = ids_of(alone.run(long_request(3)).tokens);
    std::vector<int32_t> talker = ids_of(alone.run(short_request()).tokens);
    talker.erase(talker.begin());  // drawn before the other came
    for (const int64_t between : {1, 5, 8, 12}) {
      Engine engine(model, sliced(info.name, between));
      const Both both = run_both(engine, long_request(3));
      EXPECT_EQ(both.reader, reader) << info.name << ' ' << between;
      EXPECT_EQ(both.talker, talker) << info.name << ' ' << between;
      // Chunks of 12, 12, 12 and 4 tokens in 3 layers; 5 and 8 of 12 tokens are 1 and 2 layers, and
      // the last chunk is whole where 4 tokens may be read.
      const std::map<int64_t, int64_t> steps = {{1, 12}, {5, 10}, {8, 7}, {12, 4}};
      EXPECT_EQ(both.tokens_between, steps.at(between)) << info.name;
    }
  }
}

TEST(EngineSlices, pictures_positions_and_prompt_scores_do_not_mind) {
  Request request = long_request(4);
  request.score_prompt = true;
  const auto scores = [&request](EngineConfig config, bool talk) {
    config.compact_positions = true;
    Engine engine(tiny_model(), config);
    if (talk) engine.submit(short_request());
    engine.step();
    const RequestId id = engine.submit(request);
    std::vector<float> found;
    while (engine.has_work()) {
      for (const RequestOutput& output : engine.step()) {
        if (output.id != id) continue;
        for (const SampledToken& token : output.prompt_scores) found.push_back(token.logprob);
      }
    }
    return std::vector<float>(found.begin() + 1, found.end());  // nothing predicts the first
  };
  const std::vector<float> alone = scores(sliced("streaming", 1), false);
  EXPECT_EQ(alone.size(), 39u);
  const std::vector<float> beside = scores(sliced("streaming", 1), true);
  ASSERT_EQ(beside.size(), alone.size());
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(beside[i], alone[i], 1e-4) << i;
}

// A talker, and a reader in the middle of its second chunk.
struct Halfway {
  explicit Halfway(const std::shared_ptr<Model>& model, const Request& reading = long_request(3))
      : engine(model, sliced("streaming", 1)), talker(engine.submit(short_request())) {
    engine.step();
    reader = engine.submit(reading);
    for (int i = 0; i < 4; ++i) engine.step();  // 3 layers and one
    EXPECT_EQ(engine.cache().tokens_seen(*engine.sequence_of(reader)), 12);
    EXPECT_EQ(engine.cache().tokens_in_pass(*engine.sequence_of(reader)), 12);
  }
  void expect_sound() {
    const std::vector<std::string> faults = validate(engine.cache().snapshot());
    EXPECT_TRUE(faults.empty()) << faults.front();
  }
  Engine engine;
  RequestId talker, reader = 0;
};

TEST(EngineSlices, a_client_may_leave_in_the_middle_of_a_chunk) {
  Halfway half(tiny_model());
  half.expect_sound();
  EXPECT_TRUE(half.engine.cancel(half.reader));
  half.expect_sound();
  EXPECT_EQ(run_all(half.engine).at(half.talker).tokens.size(), 60u - 5u);
  EXPECT_EQ(half.engine.cache().blocks_in_use(), 0);
}

TEST(EngineSlices, what_is_kept_of_a_half_read_chunk_ends_before_it) {
  Halfway half(tiny_model());
  const std::optional<SessionId> session = half.engine.cancel_and_keep(half.reader);
  ASSERT_TRUE(session);
  half.expect_sound();
  run_all(half.engine);
  EXPECT_EQ(half.engine.cache().tokens_seen(*half.engine.sequence_of_session(*session)), 12);
  Request more = greedy_request({}, 9);  // the rest of the prompt is read now
  more.session = session;
  Engine alone(tiny_model(), sliced("streaming", 1));
  EXPECT_EQ(ids_of(half.engine.run(more).tokens), ids_of(alone.run(long_request(3)).tokens));
}

TEST(EngineSlices, a_budget_may_change_in_the_middle_of_a_chunk) {
  Halfway half(tiny_model());
  half.engine.change_eviction(half.reader, {.policy = "streaming", .budget_entries = 8});
  half.expect_sound();
  EXPECT_EQ(half.engine.cache().entries(*half.engine.sequence_of(half.reader)), 8 * 6);
  EXPECT_EQ(run_all(half.engine).at(half.reader).tokens.size(), 9u);
}

TEST(EngineSlices, a_fault_in_a_half_read_chunk_ends_its_request_alone) {
  const Request reading = long_request(3);
  const auto model = std::make_shared<FaultyModel>(tiny_model());
  model->throw_on = reading.prompt[20];
  Halfway half(model, reading);
  auto outputs = run_all(half.engine);
  ASSERT_TRUE(outputs.at(half.reader).error);
  EXPECT_EQ(outputs.at(half.reader).error->message, "a fault on purpose");
  EXPECT_FALSE(outputs.at(half.talker).error);
  EXPECT_EQ(half.engine.cache().blocks_in_use(), 0);
}

}  // namespace
}  // namespace coppice
