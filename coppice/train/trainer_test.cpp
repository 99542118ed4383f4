#include "coppice/train/trainer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <optional>
#include <thread>

#include "coppice/train/distill_objective.h"
#include "coppice/train/train_testing.h"
#include "coppice/train/training_state.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

// A run over random documents with everything it needs.
struct Training {
  explicit Training(const ScratchFolder& folder, TrainerConfig config_in,
                    DistillTraining distill = {}, std::shared_ptr<Model> model_in = tiny_model(),
                    TrainerHooks hooks = {})
      : config(std::move(config_in)),
        tokenizer(byte_tokenizer()),
        encoder(tokenizer, nullptr),
        model(std::move(model_in)),
        objective(*model, distill),
        single(make_single()) {
    files.push_back(DocumentFile::open(folder.write("data.jsonl", random_documents(40, 120, 11))));
    stream.emplace(files, std::vector<double>{}, encoder, StreamOptions{.length = 48});
    packer.emplace(*stream, 48, 6, 2);
    trainer.emplace(*model, *packer, objective, *single, config, hooks);
  }

  at::Tensor values() { return trainer->optimizer().values(); }

  TrainerConfig config;
  Tokenizer tokenizer;
  DocumentEncoder encoder;
  std::vector<DocumentFile> files;
  std::optional<DocumentStream> stream;
  std::optional<Packer> packer;
  std::shared_ptr<Model> model;
  DistillObjective objective;
  std::unique_ptr<Collective> single;
  std::optional<Trainer> trainer;
};

TrainerConfig small_config(int64_t steps, int64_t batch_rows = 2) {
  TrainerConfig config;
  config.steps = steps;
  config.batch_rows = batch_rows;
  config.schedule = {.peak = 1e-2, .floor = 1e-4, .warmup = 3};
  config.save_every = 0;
  return config;
}

DistillTraining tight() { return {.capacity = 6.0}; }

bool is_gate(const std::string& name) { return name.find("retention_gate") != std::string::npos; }

TEST(TrainerTest, OnlyGatesChangeAndTheBaseKeepsItsBytes) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const ScratchFolder folder;
    Training run(folder, small_config(4), tight(), tiny_model(dtype));
    std::map<std::string, at::Tensor> before;
    for (const auto& item : run.model->named_parameters())
      before[item.key()] = item.value().detach().clone();
    EXPECT_TRUE(run.trainer->run());
    int64_t gates = 0;
    for (const auto& item : run.model->named_parameters()) {
      const bool same = at::equal(item.value(), before[item.key()]);
      EXPECT_EQ(same, !is_gate(item.key())) << item.key();
      gates += is_gate(item.key()) ? 1 : 0;
      if (is_gate(item.key()))
        EXPECT_EQ(item.value().scalar_type(), at::kFloat);
      else
        EXPECT_FALSE(item.value().grad().defined()) << item.key();
    }
    EXPECT_GT(gates, 0);
  }
}

TEST(TrainerTest, TheLossFallsOnAToy) {
  const ScratchFolder folder;
  std::vector<double> capacity;
  TrainerHooks hooks;
  hooks.on_step = [&](const Json& record) {
    capacity.push_back(record["capacity"].get<double>());
    EXPECT_TRUE(std::isfinite(record["kl"].get<double>()));
  };
  Training run(folder, small_config(60), tight(), tiny_model(at::kFloat, "head-row", 5.0), hooks);
  EXPECT_TRUE(run.trainer->run());
  EXPECT_LT(capacity.back(), 0.5 * capacity.front());
}

TEST(TrainerTest, EveryVariantLearns) {
  for (const char* variant : {"shared", "head-row", "local"}) {
    const ScratchFolder folder;
    Training run(folder, small_config(3), tight(), tiny_model(at::kFloat, variant));
    const at::Tensor before = run.values().clone();
    EXPECT_TRUE(run.trainer->run());
    EXPECT_FALSE(at::equal(run.values(), before)) << variant;
    const GateWeights gate = read_gate(*run.model, tiny_spec(variant));
    const ScratchFolder out;
    save_gate(out.file("g"), gate, StorageType::kF32);
    const GateWeights read = load_gate(out.file("g"));
    EXPECT_TRUE(at::equal(read.layers[2].head, gate.layers[2].head));
    EXPECT_TRUE(at::equal(read.layers[2].w1, gate.layers[2].w1));
  }
}

// Stops at several places, during the warm-up too.
TEST(TrainerTest, G08_AResumedRunEqualsAnUnbrokenOneBitForBit) {
  const ScratchFolder folder;
  DistillTraining distill = {.capacity = 6.0, .capacity_start = 20.0, .capacity_ramp = 0.5};
  std::vector<double> rates;
  TrainerHooks note;
  note.on_step = [&](const Json& record) { rates.push_back(record["learning_rate"]); };
  Training whole(folder, small_config(9), distill, tiny_model(), note);
  EXPECT_TRUE(whole.trainer->run());

  for (const std::vector<int64_t>& stops :
       {std::vector<int64_t>{1}, std::vector<int64_t>{2, 3, 5, 8}}) {
    std::vector<double> resumed;
    TrainerConfig config = small_config(9);
    config.state_path = folder.file(fmt::format("state-{}", stops.size()));
    config.log_path = config.state_path + ".log";
    at::Tensor values;
    for (std::size_t i = 0; i <= stops.size(); ++i) {
      std::atomic<bool> stop = false;
      TrainerHooks hooks;
      hooks.stop = &stop;
      hooks.on_step = [&](const Json& record) {
        resumed.push_back(record["learning_rate"]);
        if (i < stops.size() && record["step"] == stops[i]) stop = true;
      };
      Training part(folder, config, distill, tiny_model(), hooks);
      if (i > 0) part.trainer->resume();
      EXPECT_EQ(part.trainer->run(), i == stops.size());
      values = part.values();
    }
    EXPECT_TRUE(at::equal(values, whole.values()));
    EXPECT_EQ(resumed, rates);
    const std::vector<Json> records = read_log(config.log_path);
    ASSERT_EQ(records.size(), 9u);
    for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(records[i]["step"], i + 1);
  }
}

TEST(TrainerTest, AResumedRunTakesLaterLinesOffTheLog) {
  const ScratchFolder folder;
  TrainerConfig config = small_config(6);
  config.state_path = folder.file("state");
  config.log_path = folder.file("log");
  config.save_every = 4;
  std::atomic<bool> killed = false;
  {
    TrainerHooks hooks;
    hooks.on_step = [&](const Json& record) {
      if (record["step"] == 6) throw std::runtime_error("as if killed");
    };
    Training run(folder, config, tight(), tiny_model(), hooks);
    EXPECT_THROW(run.trainer->run(), std::runtime_error);
  }
  EXPECT_EQ(read_log(config.log_path).size(), 6u);
  Training run(folder, config, tight());
  run.trainer->resume();
  EXPECT_EQ(run.trainer->step(), 4);
  EXPECT_TRUE(run.trainer->run());
  EXPECT_EQ(read_log(config.log_path).size(), 6u);
}

TEST(TrainerTest, AStateOfAnotherRunIsRefusedByTheOptionThatDiffers) {
  const ScratchFolder folder;
  TrainerConfig config = small_config(2);
  config.state_path = folder.file("state");
  config.identity = {{"seed", 1}};
  Training first(folder, config);
  EXPECT_TRUE(first.trainer->run());
  config.identity = {{"seed", 2}};
  Training second(folder, config);
  EXPECT_NE(message_of([&] { second.trainer->resume(); }).find("seed was 1, and is 2"),
            std::string::npos);
  config.identity = {{"seed", 1}};
  Training third(folder, config, {}, tiny_model(at::kFloat, "local"));
  EXPECT_NE(message_of([&] { third.trainer->resume(); }).find("other parameters"),
            std::string::npos);
  config.save_every = 7;  // changes no step
  Training fourth(folder, config);
  fourth.trainer->resume();
  EXPECT_EQ(fourth.trainer->step(), 2);
}

at::Tensor gradient_of(const ScratchFolder& folder, int64_t batch_rows, int64_t micro_rows,
                       bool recompute = false, at::ScalarType dtype = at::kFloat) {
  TrainerConfig config = small_config(1, batch_rows);
  config.micro_rows = micro_rows;
  config.clip_norm = 0;
  DistillTraining distill = tight();
  distill.recompute = recompute;
  Training run(folder, config, distill, tiny_model(dtype));
  EXPECT_TRUE(run.trainer->run());
  return run.trainer->optimizer().gradients().clone();
}

TEST(TrainerTest, AccumulatedRowsEqualOneBatch) {
  const ScratchFolder folder;
  const at::Tensor apart = gradient_of(folder, 4, 1);
  const at::Tensor together = gradient_of(folder, 4, 4);
  EXPECT_LT((apart - together).abs().max().item<double>(),
            1e-6 * std::max(1.0, together.abs().max().item<double>()));
  EXPECT_GT(together.abs().max().item<double>(), 1e-5);
}

TEST(TrainerTest, G09_RecomputedActivationsGiveTheSameGradients) {
  const ScratchFolder folder;
  const at::Tensor kept = gradient_of(folder, 2, 1, false);
  const at::Tensor again = gradient_of(folder, 2, 1, true);
  EXPECT_LT((kept - again).abs().max().item<double>(), 1e-6);
  EXPECT_GT(kept.abs().max().item<double>(), 1e-5);
}

// Stands in for a batch whose loss falls on no token: rows without a target.
TEST(TrainerTest, G06_RowsWithoutATargetCountForNothing) {
  const std::shared_ptr<Model> model = tiny_model();
  for (const bool recompute : {false, true}) {
    DistillTraining distill = tight();
    distill.recompute = recompute;
    DistillObjective objective(*model, distill);
    AdamW optimizer(gate_parameters(*model), {});
    Row row;
    row.tokens = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    row.targets.assign(10, kNoTarget);
    row.cu_seqlens = {0, 10};
    row.labels = {"only prompt"};
    Measures measures;
    objective.accumulate(*model, make_micro_batch(row), {0, 1, 10, 0}, measures);
    EXPECT_EQ(measures.mean("kl"), 0.0);
    EXPECT_EQ(measures.mean("ntp"), 0.0);
    EXPECT_TRUE(optimizer.gradients().isfinite().all().item<bool>());
    EXPECT_GT(optimizer.gradients().abs().max().item<double>(), 0.0) << "the capacity term acts";
  }
}

TEST(TrainerTest, NumbersThatAreNotFiniteStopWithStepDocumentAndLayer) {
  const ScratchFolder folder;
  TrainerConfig config = small_config(5);
  config.state_path = folder.file("state");
  config.save_every = 1;
  std::shared_ptr<Model> model = tiny_model();
  TrainerHooks hooks;
  hooks.on_step = [&](const Json& record) {
    if (record["step"] != 2) return;
    const torch::NoGradGuard no_gradient;
    for (auto& item : model->named_parameters())
      if (item.key() == "model.layers.1.self_attn.k_proj.weight") item.value().fill_(NAN);
  };
  Training run(folder, config, tight(), model, hooks);
  const std::string message = message_of([&] { run.trainer->run(); });
  EXPECT_NE(message.find("step 3"), std::string::npos) << message;
  EXPECT_NE(message.find("layer 1"), std::string::npos) << message;
  EXPECT_NE(message.find("data.jsonl:"), std::string::npos) << message;
  Training after(folder, config, tight());
  after.trainer->resume();
  EXPECT_EQ(after.trainer->step(), 2) << "the last good state";
}

TEST(TrainerTest, G01_NewGatesAreDrawnIn32BitAndAllHeadsHaveGradients) {
  GateSpec spec = tiny_spec("local");
  spec.layers = 100;
  spec.kv_heads = 100;
  const GateWeights gate = new_gate(spec, 8.0, 1);  // 10,000 heads
  for (const GateLayer& layer : gate.layers) {
    EXPECT_EQ(layer.head.scalar_type(), at::kFloat);
    EXPECT_TRUE(layer.head.isfinite().all().item<bool>());
    EXPECT_TRUE((layer.head.abs().sum(1) > 0).all().item<bool>());
  }
  const ScratchFolder folder;
  EXPECT_TRUE(gradient_of(folder, 2, 1, false, at::kBFloat16).isfinite().all().item<bool>());
}

// At the start value a head can learn to forget: its gradient is above a floor and it moves.
TEST(TrainerTest, G02_HeadsLeaveTheStartValue) {
  const ScratchFolder folder;
  Training run(folder, small_config(40), tight(), tiny_model(at::kFloat, "head-row", 8.0));
  const GateWeights before = read_gate(*run.model, tiny_spec());
  EXPECT_TRUE(run.trainer->run());
  const GateWeights after = read_gate(*run.model, tiny_spec());
  for (std::size_t l = 0; l < 3; ++l)
    EXPECT_LT((after.layers[l].bias - before.layers[l].bias).max().item<double>(), -0.05) << l;
}

// Steps far below the grid of 16 bits add up, as the masters have 32.
TEST(TrainerTest, G03_TinyStepsMoveGatesUnderABfloat16Model) {
  const ScratchFolder folder;
  TrainerConfig config = small_config(30);
  config.schedule = {.peak = 1e-5, .floor = 1e-5, .warmup = 0};
  Training half(folder, config, tight(), tiny_model(at::kBFloat16));
  Training full(folder, config, tight(), tiny_model(at::kFloat));
  const at::Tensor start = half.values().clone();
  EXPECT_TRUE(half.trainer->run());
  EXPECT_TRUE(full.trainer->run());
  const at::Tensor moved = half.values() - start, expected = full.values() - start;
  EXPECT_GT(expected.abs().max().item<double>(), 1e-4);
  const double cosine = (moved.dot(expected) / (moved.norm() * expected.norm())).item<double>();
  EXPECT_GT(cosine, 0.8);
  EXPECT_GT((moved.norm() / expected.norm()).item<double>(), 0.7);
}

TEST(OptimizerTest, EqualsTheLibrarysAdamW) {
  torch::manual_seed(3);
  const at::Tensor start = torch::randn({5, 4}), bias_start = torch::randn({4});
  at::Tensor ours = start.clone(), bias = bias_start.clone();
  AdamW optimizer({{"bias", bias}, {"w", ours}}, {.weight_decay = 0.1});
  at::Tensor theirs = start.clone().requires_grad_(true);
  at::Tensor their_bias = bias_start.clone().requires_grad_(true);
  torch::optim::AdamW library(
      {torch::optim::OptimizerParamGroup({theirs},
                                         std::make_unique<torch::optim::AdamWOptions>(
                                             torch::optim::AdamWOptions(1e-2).weight_decay(0.1))),
       torch::optim::OptimizerParamGroup({their_bias},
                                         std::make_unique<torch::optim::AdamWOptions>(
                                             torch::optim::AdamWOptions(1e-2).weight_decay(0.0)))},
      torch::optim::AdamWOptions(1e-2));
  for (int i = 0; i < 10; ++i) {
    const at::Tensor x = torch::randn({3, 5});
    optimizer.zero_gradients();
    library.zero_grad();
    ((x.matmul(ours) + bias).square().sum()).backward();
    ((x.matmul(theirs) + their_bias).square().sum()).backward();
    optimizer.step(1e-2);
    library.step();
  }
  EXPECT_LT((ours - theirs).abs().max().item<double>(), 1e-5);
  EXPECT_LT((bias - their_bias).abs().max().item<double>(), 1e-5);
}

TEST(OptimizerTest, ScheduleRisesAndFallsToItsFloor) {
  const Schedule schedule{.peak = 1.0, .floor = 0.1, .warmup = 4, .steps = 20};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.at(3), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(4), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(19), 0.1);
  for (int64_t step = 4; step < 19; ++step) EXPECT_GT(schedule.at(step), schedule.at(step + 1));
  EXPECT_DOUBLE_EQ((Schedule{.peak = 1.0, .warmup = 0, .steps = 1}).at(0), 1.0);
}

}  // namespace
}  // namespace coppice
