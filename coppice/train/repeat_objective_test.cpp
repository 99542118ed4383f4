#include "coppice/train/repeat_objective.h"

#include <gtest/gtest.h>

#include <cmath>

#include "coppice/attention/dense_backend.h"
#include "coppice/nn/attention.h"
#include "coppice/nn/decoder_layer.h"
#include "coppice/train/optimizer.h"
#include "coppice/train/teacher.h"
#include "coppice/train/train_testing.h"
#include "coppice/train/trainer.h"
#include "tests/support/rival_gates.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

GateSpec spec_of(const std::string& kind) {
  const ModelArgs args = tiny_args();
  const std::vector<GateSpec> specs = rival_specs({args.num_hidden_layers, args.num_key_value_heads,
                                                   args.hidden_size, args.num_attention_heads});
  return kind == "kvzap" ? specs[0] : specs[2];
}

std::shared_ptr<Model> gated_model(const std::string& kind) {
  return tiny_model_with(new_gate(spec_of(kind), kind == "kvzap" ? -3.0 : 0.0, 5));
}

Row random_row(int64_t tokens, uint64_t seed) {
  Rng rng(seed);
  Row row;
  for (int64_t i = 0; i < tokens; ++i)
    row.tokens.push_back(3 + static_cast<int64_t>(rng.below(40)));
  row.targets.assign(static_cast<std::size_t>(tokens), kNoTarget);
  row.cu_seqlens = {0, tokens / 4, tokens};
  row.labels = {"short", "long"};
  return row;
}

RepeatTraining small_training() {
  return {.before = {50, 51}, .between = {60, 61, 62}, .updates = 3, .tokens_per_update = 40};
}

// Attention of every layer as whole matrices, of a batch of one sequence.
struct MatrixBackend final : AttentionBackend {
  DenseBackend dense;
  std::vector<at::Tensor> p, v;  // [Hq, T, T], [T, Hkv, D]
  at::Tensor forward(const AttentionInput& input, const Batch& batch) override {
    const int64_t group = input.q.size(1) / input.k.size(1), tokens = input.q.size(0);
    const at::Tensor k = input.k.repeat_interleave(group, 1).transpose(0, 1);
    const at::Tensor logits = at::matmul(input.q.transpose(0, 1), k.transpose(1, 2)) * input.scale;
    const at::Tensor later = torch::ones({tokens, tokens}, torch::kBool).triu(1);
    p.push_back(at::softmax(logits.masked_fill(later, -INFINITY), 2));
    v.push_back(input.v);
    return dense.forward(input, batch);
  }
};

// Of one document, from whole matrices of attention.
void expect_labels(Model& model, const RepeatTarget& target, const RepeatTraining& options,
                   const std::vector<int64_t>& document, const RepeatLabels& got, int64_t first) {
  Row row;
  row.tokens = options.before;
  row.tokens.insert(row.tokens.end(), document.begin(), document.end());
  const auto begin = static_cast<int64_t>(options.before.size());
  const auto size = static_cast<int64_t>(document.size());
  int64_t from = begin + size;
  if (!target.between_asks) from += static_cast<int64_t>(options.between.size());
  row.tokens.insert(row.tokens.end(), options.between.begin(), options.between.end());
  row.tokens.insert(row.tokens.end(), document.begin(), document.end());
  row.targets.assign(row.tokens.size(), kNoTarget);
  row.cu_seqlens = {0, static_cast<int64_t>(row.tokens.size())};
  std::vector<at::Tensor> normed;
  for (nn::DecoderLayer* layer : decoder_layers(model))
    layer->set_observer(
        [&](int64_t, const at::Tensor&, const at::Tensor& x) { normed.push_back(x.clone()); });
  MatrixBackend backend;
  model.forward(make_micro_batch(row).batch, backend);
  for (nn::DecoderLayer* layer : decoder_layers(model)) layer->set_observer({});
  const ModelArgs& args = model.args();
  const int64_t group = args.num_attention_heads / args.num_key_value_heads;
  for (int64_t l = 0; l < args.num_hidden_layers; ++l) {
    const auto at = static_cast<std::size_t>(l);
    EXPECT_TRUE(at::allclose(got.inputs[at].slice(0, first, first + size),
                             normed[at].slice(0, begin, begin + size), 1e-4, 1e-4));
    const at::Tensor w =
        model.named_parameters()[fmt::format("model.layers.{}.self_attn.o_proj.weight", l)];
    for (int64_t h = 0; h < args.num_key_value_heads; ++h) {
      at::Tensor most = torch::zeros({size});
      for (int64_t g = h * group; g < (h + 1) * group; ++g) {
        at::Tensor score = backend.p[at][g].slice(0, from).slice(1, begin, begin + size);
        if (target.utility == ops::NeedUtility::kAttentionValue) {
          const at::Tensor values =
              at::matmul(backend.v[at].select(1, h).slice(0, begin, begin + size),
                         w.slice(1, g * args.head_dim, (g + 1) * args.head_dim).t());
          score = score * values.norm(2, {1}) / normed[at].slice(0, from).norm(2, {1}).unsqueeze(1);
        }
        most = at::maximum(most, score.amax(0));
      }
      const at::Tensor label = got.labels.slice(0, first, first + size).select(1, l).select(1, h);
      EXPECT_LE((label - most.log()).abs().max().item<double>(), 2e-2) << "layer " << l;
      EXPECT_LE((label - most.log()).abs().mean().item<double>(), 1e-3) << "layer " << l;
    }
  }
}

TEST(RepeatObjective, labels_are_what_whole_matrices_of_attention_say) {
  const torch::NoGradGuard no_gradient;
  for (const std::string kind : {"kvzap", "fastkvzip"}) {
    const std::shared_ptr<Model> model = gated_model(kind);
    const Row row = random_row(60, 3);
    const RepeatTraining options = small_training();
    const RepeatTarget& target = repeat_target(kind);
    const RepeatLabels got = repeat_labels(*model, make_micro_batch(row).batch, options, target);
    ASSERT_EQ(got.labels.sizes(), (std::vector<int64_t>{60, 3, 2}));
    for (std::size_t b = 0; b < 2; ++b)
      expect_labels(
          *model, target, options,
          {row.tokens.begin() + row.cu_seqlens[b], row.tokens.begin() + row.cu_seqlens[b + 1]}, got,
          row.cu_seqlens[b]);
  }
}

TEST(RepeatObjective, losses_are_those_of_the_papers) {
  const at::Tensor label = torch::tensor({0.3F, 0.9F}).log(),
                   score = torch::tensor({0.2F, 0.8F}).log();
  EXPECT_NEAR(repeat_target("kvzap").loss(score, label).item<double>(),
              (std::pow(std::log(0.2 / 0.3), 2) + std::pow(std::log(0.8 / 0.9), 2)) / 2, 1e-6);
  const double wanted =
      -(0.3 * std::log(0.2) + 0.7 * std::log(0.8) + 0.9 * std::log(0.8) + 0.1 * std::log(0.2)) / 2;
  EXPECT_NEAR(repeat_target("fastkvzip").loss(score, label).item<double>(), wanted, 1e-6);
  // Certainty costs, and is a number.
  const at::Tensor sure = torch::zeros({1}), unwanted = torch::full({1}, -30.0F);
  EXPECT_TRUE(std::isfinite(repeat_target("fastkvzip").loss(sure, unwanted).item<double>()));
  EXPECT_NE(message_of([] { repeat_target("retention"); }).find("kvzap"), std::string::npos);
}

TEST(RepeatObjective, the_loss_falls_and_only_gates_change) {
  for (const std::string kind : {"kvzap", "fastkvzip"}) {
    const std::shared_ptr<Model> model = gated_model(kind);
    std::vector<at::Tensor> before;
    for (const auto& item : model->named_parameters())
      if (item.key().find("retention_gate") == std::string::npos)
        before.push_back(item.value().clone());
    RepeatObjective objective(*model, small_training());
    AdamW optimizer(gate_parameters(*model), {});
    const Row row = random_row(120, 1);
    double first = 0, last = 0, fit = 0;
    objective.begin_batch();
    for (int64_t step = 0; step < 150; ++step) {
      optimizer.zero_gradients();
      Measures measures;
      objective.accumulate(*model, make_micro_batch(row), {step, 150, 120, 0}, measures);
      ASSERT_TRUE(optimizer.gradients().isfinite().all().item<bool>()) << kind;
      optimizer.step(2e-2);
      (step == 0 ? first : last) = measures.mean("loss");
      fit = measures.mean("r2");
    }
    EXPECT_LT(last, (kind == "kvzap" ? 0.5 : 0.95) * first) << kind;
    EXPECT_GT(fit, 0.3) << kind;
    std::size_t i = 0;
    for (const auto& item : model->named_parameters())
      if (item.key().find("retention_gate") == std::string::npos) {
        EXPECT_TRUE(at::equal(item.value(), before[i++])) << item.key();
      }
    const GateWeights trained = read_gate(*model, spec_of(kind));
    EXPECT_FALSE(at::equal(trained.layers[1].w1, new_gate(spec_of(kind), 0.0, 5).layers[1].w1));
  }
}

TEST(RepeatObjective, refuses_what_it_cannot_fit) {
  EXPECT_NE(message_of([] { RepeatObjective(*tiny_model(), small_training()); }).find("retention"),
            std::string::npos);
  const std::shared_ptr<Model> model = gated_model("kvzap");
  RepeatTraining nothing = small_training();
  nothing.between.clear();
  EXPECT_NE(message_of([&] { RepeatObjective(*model, nothing); }), "");
  const Row row = random_row(200, 1);  // twice 150 and more pass the model's 256 positions
  EXPECT_NE(message_of([&] {
              repeat_labels(*model, make_micro_batch(row).batch, small_training(),
                            repeat_target("kvzap"));
            }).find("256"),
            std::string::npos);
}

// States in the middle of the steps on one batch of rows, and between two of them.
TEST(RepeatObjective, G08_a_resumed_run_equals_an_unbroken_one) {
  expect_resumed_equals_unbroken(
      90, {1, 3}, [] { return gated_model("fastkvzip"); },
      [](Model& model) { return RepeatObjective(model, small_training()); });
}

}  // namespace
}  // namespace coppice
