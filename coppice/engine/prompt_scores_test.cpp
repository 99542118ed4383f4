// Log-probabilities of prompts: what the model says, whatever the chunks, and what the bounded
// cache says.
#include <cmath>

#include "coppice/attention/dense_backend.h"
#include "coppice/engine/engine_testing.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

Request scoring(std::vector<int32_t> prompt, int64_t tops = 2, int64_t max_tokens = 0) {
  Request request = greedy_request(std::move(prompt), max_tokens);
  request.sampling.logprobs = tops;
  request.score_prompt = true;
  return request;
}

// [N, V] float64, by the model over the whole text at once.
at::Tensor dense_logprobs(Model& model, const std::vector<int32_t>& ids) {
  const torch::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(ids.size());
  Batch batch;
  batch.token_ids = torch::tensor(std::vector<int64_t>(ids.begin(), ids.end()));
  batch.positions = torch::arange(count);
  batch.sequence_ids = {0};
  batch.cu_seqlens = {0, count};
  DenseBackend dense;
  return torch::log_softmax(model.logits(model.forward(batch, dense)).to(torch::kDouble), -1);
}

std::vector<float> values(const std::vector<SampledToken>& scores) {
  std::vector<float> result;
  for (std::size_t i = 1; i < scores.size(); ++i) result.push_back(scores[i].logprob);
  return result;
}

TEST(PromptScores, equal_the_models_own_whatever_the_chunk) {
  const std::shared_ptr<Model> model = tiny_model();
  Rng rng(4);
  for (const int64_t length : {1, 2, 8, 9, 41}) {
    const std::vector<int32_t> prompt = random_prompt(rng, length);
    const at::Tensor expected = dense_logprobs(*model, prompt);
    for (const int64_t chunk : {1, 7, 8, 100}) {
      Request request = scoring(prompt);
      request.chunk_tokens = chunk;
      Engine engine(model, engine_config());
      const RequestOutput output = engine.run(request);
      ASSERT_EQ(output.prompt_scores.size(), prompt.size());
      EXPECT_TRUE(std::isnan(output.prompt_scores[0].logprob));
      EXPECT_TRUE(output.prompt_scores[0].top.empty());
      for (int64_t i = 0; i < length; ++i) {
        const SampledToken& score = output.prompt_scores[static_cast<std::size_t>(i)];
        EXPECT_EQ(score.id, prompt[static_cast<std::size_t>(i)]);
        if (i == 0) continue;
        EXPECT_NEAR(score.logprob, expected[i - 1][score.id].item<double>(), 1e-4);
        const auto best = expected[i - 1].topk(2);
        ASSERT_EQ(score.top.size(), 2u);
        EXPECT_EQ(score.top[0].id, std::get<1>(best)[0].item<int64_t>());
        EXPECT_NEAR(score.top[1].logprob, std::get<0>(best)[1].item<double>(), 1e-4);
      }
      EXPECT_TRUE(output.tokens.empty());
    }
  }
}

// Reading one token at a time, each prediction is what a generation at that place would draw from.
TEST(PromptScores, under_a_budget_are_what_the_bounded_cache_predicts) {
  const std::shared_ptr<Model> model = tiny_model();
  Rng rng(5);
  const std::vector<int32_t> prompt = random_prompt(rng, 40);
  for (const char* policy : {"dbtrimkv", "streaming"}) {
    const EvictionConfig eviction{.policy = policy, .budget_entries = 10};
    for (const int64_t chunk : {1, 8}) {
      Request request = scoring(prompt);
      request.chunk_tokens = chunk;
      Engine engine(model, engine_config(eviction));
      const std::vector<SampledToken> scores = engine.run(request).prompt_scores;
      for (const int64_t at : {3, 16, 32, 39}) {
        Request part = greedy_request({prompt.begin(), prompt.begin() + at}, 1);
        part.sampling.logit_bias[prompt[static_cast<std::size_t>(at)]] = 100;  // forces the draw
        part.sampling.logprobs = 0;
        part.chunk_tokens = chunk;
        const RequestOutput drawn = engine.run(part);
        ASSERT_EQ(drawn.tokens.at(0).id, prompt[static_cast<std::size_t>(at)]);
        EXPECT_NEAR(scores[static_cast<std::size_t>(at)].logprob, drawn.tokens[0].logprob, 1e-5)
            << policy << " " << at;
      }
      Engine full(model, engine_config());
      EXPECT_NE(values(full.run(request).prompt_scores), values(scores)) << policy;
    }
  }
}

TEST(PromptScores, batched_equal_alone_and_change_no_answer) {
  const std::shared_ptr<Model> model = tiny_model();
  Rng rng(6);
  const EvictionConfig eviction{.policy = "dbtrimkv", .budget_entries = 12};
  std::vector<Request> requests;
  for (const int64_t length : {30, 3, 17}) {
    requests.push_back(scoring(random_prompt(rng, length), 1, 6));
  }
  requests[1].score_prompt = false;
  Engine together(model, engine_config(eviction));
  std::map<RequestId, std::vector<SampledToken>> scores;
  std::map<RequestId, std::vector<int32_t>> answers;
  for (const Request& request : requests) together.submit(request);
  while (together.has_work()) {
    for (const RequestOutput& output : together.step()) {
      auto& mine = scores[output.id];
      mine.insert(mine.end(), output.prompt_scores.begin(), output.prompt_scores.end());
      for (const SampledToken& token : output.tokens) answers[output.id].push_back(token.id);
    }
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Engine engine(model, engine_config(eviction));
    const RequestOutput alone = engine.run(requests[i]);
    const auto id = static_cast<RequestId>(i + 1);
    const std::vector<float> got = values(scores[id]), expected = values(alone.prompt_scores);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t k = 0; k < got.size(); ++k) EXPECT_NEAR(got[k], expected[k], 1e-5);
    EXPECT_EQ(answers[id], ids_of(alone.tokens));
    Request plain = requests[i];
    plain.score_prompt = false;
    EXPECT_EQ(ids_of(engine.run(plain).tokens), answers[id]);
  }
  EXPECT_TRUE(scores[2].empty());
}

TEST(PromptScores, a_turn_of_a_session_scores_what_it_reads) {
  Rng rng(7);
  Engine engine(tiny_model(), engine_config());
  Request first = greedy_request(random_prompt(rng, 9), 4);
  first.keep_session = true;
  const RequestOutput kept = engine.run(first);
  Request second = scoring(random_prompt(rng, 5));
  second.session = kept.session;
  const RequestOutput output = engine.run(second);
  ASSERT_EQ(output.prompt_scores.size(), 6u);  // the last token drawn was not read yet
  EXPECT_EQ(output.prompt_scores[0].id, kept.tokens.back().id);
  EXPECT_EQ(output.prompt_scores[5].id, second.prompt[4]);
}

}  // namespace
}  // namespace coppice
