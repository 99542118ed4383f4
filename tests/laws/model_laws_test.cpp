// Laws of attention through whole models: every architecture, every policy, float64 (reference
// path) and float32 (fast path).
#include "coppice/attention/dense_backend.h"
#include "laws_testing.h"

namespace coppice {
namespace {

using namespace coppice::laws;  // NOLINT: helpers of these tests

constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat};

EvictionConfig full() { return eviction_config(find_policy("full"), 0); }

TEST(ModelLaws, paged_equals_dense_and_chunks_equal_one_pass) {
  for (const Architecture& arch : architectures())
    for (const at::ScalarType dtype : kDtypes) {
      const std::shared_ptr<Model> model = tiny_model(arch.args, dtype);
      Rng rng(2);
      const std::vector<int32_t> tokens = random_tokens(rng, 70);
      DenseBackend dense;
      const Tensor expected = run_whole(*model, tokens, dense);
      EXPECT_GT(expected.std().item<double>(), 0.1);
      for (const int64_t chunk : {1, 7, 16, 33, 70}) {
        Runner runner(model, full(), dtype);
        poison_free_slots(runner.cache);
        const Tensor got = runner.feed(runner.cache.add_sequence(), tokens, chunk);
        EXPECT_LE(distance(got, expected), tolerance(dtype)) << arch.name << ", chunk " << chunk;
        EXPECT_LE(distance(model->logits(got), model->logits(expected)), tolerance(dtype));
      }
    }
}

TEST(ModelLaws, K14_batched_equals_alone_for_every_policy) {
  for (const Architecture& arch : architectures())
    for (const at::ScalarType dtype : kDtypes) {
      const std::shared_ptr<Model> model = tiny_model(arch.args, dtype);
      for (const PolicyInfo& info : policies()) {
        Rng rng(3);
        std::vector<std::vector<int32_t>> prompts;
        for (const int64_t length : {3, 50, 90}) prompts.push_back(random_tokens(rng, length));
        const std::vector<int32_t> next = random_tokens(rng, 6);
        Runner together(model, eviction_config(info, 16), dtype);
        std::vector<std::pair<SequenceId, std::vector<int32_t>>> inputs;
        for (const auto& prompt : prompts)
          inputs.push_back({together.cache.add_sequence(), prompt});
        std::vector<Tensor> outs = {together.pass(inputs)};
        for (const int32_t token : next) {
          for (auto& input : inputs) input.second = {token};
          outs.push_back(together.pass(inputs));
        }
        int64_t first = 0;
        for (std::size_t s = 0; s < prompts.size(); ++s) {
          Runner alone(model, eviction_config(info, 16), dtype);
          const SequenceId id = alone.cache.add_sequence();
          const auto length = static_cast<int64_t>(prompts[s].size());
          EXPECT_LE(distance(alone.feed(id, prompts[s], length), outs[0].narrow(0, first, length)),
                    tolerance(dtype));
          for (std::size_t t = 0; t < next.size(); ++t)
            EXPECT_LE(distance(alone.pass({{id, {next[t]}}}),
                               outs[t + 1].narrow(0, static_cast<int64_t>(s), 1)),
                      tolerance(dtype))
                << arch.name << ", " << info.name << ", sequence " << s << ", token " << t;
          first += length;
        }
      }
    }
}

TEST(ModelLaws, budget_at_or_above_the_length_is_the_full_cache_token_for_token) {
  for (const Architecture& arch : architectures()) {
    const std::shared_ptr<Model> model = tiny_model(arch.args, at::kFloat);
    Rng rng(4);
    const std::vector<int32_t> prompt = random_tokens(rng, 40);
    constexpr int64_t kGenerated = 20;
    const auto generate = [&](const EvictionConfig& config) {
      Runner runner(model, config, at::kFloat);
      const SequenceId id = runner.cache.add_sequence();
      Tensor hidden = runner.feed(id, prompt, 16);
      std::vector<int32_t> out;
      for (int64_t t = 0; t < kGenerated; ++t) {
        const Tensor logits = model->logits(hidden.narrow(0, hidden.size(0) - 1, 1));
        out.push_back(logits.argmax().item<int32_t>());
        hidden = runner.pass({{id, {out.back()}}});
      }
      return out;
    };
    const std::vector<int32_t> expected = generate(full());
    for (const PolicyInfo& info : policies())
      for (const int64_t budget : {60, 61, 1000})
        EXPECT_EQ(generate(eviction_config(info, budget)), expected)
            << arch.name << ", " << info.name << ", budget " << budget;
  }
}

// Every token's keys and values come from what it saw then, so one dense pass under the noted masks
// must give the same hidden state for every token of the run.
TEST(ModelLaws, K01_K15_eviction_equals_dense_masked_to_the_kept_sets) {
  const std::vector<int64_t> steps = {20, 1, 1, 17, 1, 33, 8, 1, 1, 1, 16, 1};
  int64_t total = 0;
  for (const int64_t step : steps) total += step;
  for (const Architecture& arch : architectures())
    for (const at::ScalarType dtype : kDtypes) {
      const std::shared_ptr<Model> model = tiny_model(arch.args, dtype);
      for (const PolicyInfo& info : policies()) {
        Rng rng(5);
        const std::vector<int32_t> tokens = random_tokens(rng, total);
        Runner runner(model, eviction_config(info, 12), dtype);
        const SequenceId id = runner.cache.add_sequence();
        MaskedBackend masked;
        for (int64_t layer = 0; layer < arch.args.num_hidden_layers; ++layer)
          masked.visible.push_back(
              torch::zeros({arch.args.num_key_value_heads, total, total}, torch::kBool));
        std::vector<Tensor> outs;
        int64_t first = 0;
        for (const int64_t step : steps) {
          poison_free_slots(runner.cache);
          note_visible(runner.cache, id, first, step, masked.visible);
          const auto begin = tokens.begin() + first;
          outs.push_back(runner.pass({{id, {begin, begin + step}}}));
          first += step;
        }
        EXPECT_EQ(runner.cache.tokens_seen(id), total);
        EXPECT_LE(distance(torch::cat(outs), run_whole(*model, tokens, masked)), tolerance(dtype))
            << arch.name << ", " << info.name << ", " << c10::toString(dtype);
      }
    }
}

TEST(ModelLaws, K02_a_chunk_after_eviction_is_token_by_token) {
  for (const Architecture& arch : architectures()) {
    const std::shared_ptr<Model> model = tiny_model(arch.args, at::kDouble);
    for (const PolicyInfo& info : policies()) {
      Rng rng(6);
      const std::vector<int32_t> prompt = random_tokens(rng, 60);
      const std::vector<int32_t> turn = random_tokens(rng, 8);
      Runner runner(model, eviction_config(info, 16), at::kDouble);
      const SequenceId chunked = runner.cache.add_sequence();
      runner.feed(chunked, prompt, 20);
      const SequenceId single = runner.cache.fork(chunked);
      // Eviction between single tokens would change what later ones see: both runs go without.
      EvictionPolicy none(full(), runner.cache.config());
      torch::NoGradGuard no_grad;
      const auto step = [&](SequenceId id, std::span<const int32_t> tokens) {
        const PassPart part = {id, tokens, &none};
        const Tensor hidden =
            forward_pass(*model, runner.backend, runner.cache, std::span(&part, 1));
        commit_pass(runner.cache, part);
        return hidden;
      };
      const Tensor expected = step(chunked, turn);
      for (std::size_t t = 0; t < turn.size(); ++t)
        EXPECT_LE(distance(step(single, std::span(turn).subspan(t, 1)),
                           expected.narrow(0, static_cast<int64_t>(t), 1)),
                  1e-10)
            << arch.name << ", " << info.name;
    }
  }
}

TEST(ModelLaws, K22_budgets_of_one_and_rows_left_empty_give_numbers) {
  for (const Architecture& arch : architectures()) {
    const std::shared_ptr<Model> model = tiny_model(arch.args, at::kFloat);
    for (const PolicyInfo& info : policies()) {
      Rng rng(7);
      Runner runner(model, eviction_config(info, 1), at::kFloat);
      const SequenceId id = runner.cache.add_sequence();
      const Tensor hidden = runner.feed(id, random_tokens(rng, 40), 3);
      EXPECT_TRUE(hidden.isfinite().all().item<bool>()) << arch.name << ", " << info.name;
    }
  }
}

}  // namespace
}  // namespace coppice
