#include "coppice/train/teacher_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "coppice/train/distill_objective.h"
#include "coppice/train/optimizer.h"
#include "coppice/train/teacher.h"
#include "coppice/train/train_testing.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests
namespace fs = std::filesystem;

constexpr int64_t kPlenty = 1 << 20;

Row random_row(const std::vector<int64_t>& sizes, uint64_t seed) {
  Row row;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    Rng rng(mix_seed(seed, d));
    Row one;
    for (int64_t i = 0; i < sizes[d]; ++i) {
      one.tokens.push_back(3 + static_cast<int64_t>(rng.below(200)));
      one.targets.push_back(3 + static_cast<int64_t>(rng.below(200)));
    }
    one.cu_seqlens = {0, sizes[d]};
    one.labels = {"random"};
    append_row(row, one);
  }
  return row;
}

class TeacherCacheTest : public ::testing::Test {
 protected:
  at::Tensor read(TeacherCache& cache, const Row& row) {
    const torch::NoGradGuard no_gradient;
    return cache.hidden(make_micro_batch(row).batch, [this](const Batch& batch) {
      ++passes_;
      TeacherBackend full;
      return model_->forward(batch, full);
    });
  }
  int64_t bytes_held() const {
    int64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(folder_.path()))
      bytes += static_cast<int64_t>(entry.file_size());
    return bytes;
  }
  std::string folder() const { return folder_.path(); }

  ScratchFolder folder_;
  std::shared_ptr<Model> model_ = tiny_model();
  int64_t passes_ = 0;
};

TEST_F(TeacherCacheTest, GivesTheTeachersHiddenStates) {
  TeacherCache cache(folder(), kPlenty, "tiny");
  const Row row = random_row({20, 1, 33}, 1);
  const at::Tensor found = read(cache, row);
  const torch::NoGradGuard no_gradient;
  TeacherBackend full;
  const at::Tensor packed = model_->forward(make_micro_batch(row).batch, full);
  EXPECT_EQ(found.sizes(), packed.sizes());
  EXPECT_LE((found - packed).abs().max().item<double>(), 1e-5);
}

TEST_F(TeacherCacheTest, ADocumentThatComesAgainCostsNoPassAndChangesNoBit) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    model_ = tiny_model(dtype);
    const std::string name = dtype == at::kFloat ? "float32" : "bfloat16";
    TeacherCache first(folder(), kPlenty, name);
    const at::Tensor before = read(first, random_row({20, 12, 33}, 1));
    EXPECT_EQ(first.stored(), 3);
    passes_ = 0;
    TeacherCache second(folder(), kPlenty, name);  // another run
    Row row = random_row({20}, 1);                 // in another packing
    append_row(row, random_row({7}, 99));
    const at::Tensor after = read(second, row);
    EXPECT_EQ(passes_, 1);
    EXPECT_EQ(second.found(), 1);
    EXPECT_TRUE(at::equal(after.slice(0, 0, 20), before.slice(0, 0, 20)));
  }
}

TEST_F(TeacherCacheTest, WhatAnotherModelWroteIsNotFound) {
  TeacherCache mine(folder(), kPlenty, "mine"), other(folder(), kPlenty, "other");
  read(mine, random_row({20}, 1));
  read(other, random_row({20}, 1));
  EXPECT_EQ(other.found(), 0);
  EXPECT_EQ(passes_, 2);
}

TEST_F(TeacherCacheTest, TheBoundHoldsForAllThatShareTheFolder) {
  constexpr int64_t kBound = 12000;
  TeacherCache one(folder(), kBound, "one"), two(folder(), kBound, "two");
  for (uint64_t seed = 0; seed < 8; ++seed) {
    read(seed % 2 == 0 ? one : two, random_row({20}, seed));
    EXPECT_LE(bytes_held(), kBound);
  }
  EXPECT_GE(one.stored() + two.stored(), 3);
  EXPECT_LT(one.stored() + two.stored(), 8);
  passes_ = 0;
  read(one, random_row({20}, 0));  // what was kept first is still there
  EXPECT_EQ(passes_, 0);
}

TEST_F(TeacherCacheTest, DamagedFilesAreMadeAnewAndDraftsGo) {
  TeacherCache cache(folder(), kPlenty, "tiny");
  const at::Tensor before = read(cache, random_row({20}, 1));
  fs::path path;
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    if (entry.path().extension() == ".hidden") path = entry.path();
  ASSERT_FALSE(path.empty());
  for (const bool short_file : {false, true}) {
    if (short_file)
      fs::resize_file(path, 100);
    else
      std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(-3, std::ios::end)
          << "x";
    std::ofstream(path.string() + ".Ab12Cd") << "left by a process that was killed";
    passes_ = 0;
    EXPECT_TRUE(at::equal(read(cache, random_row({20}, 1)), before));
    EXPECT_EQ(passes_, 1);
    EXPECT_FALSE(fs::exists(path.string() + ".Ab12Cd"));
    EXPECT_TRUE(at::equal(read(cache, random_row({20}, 1)), before));
    EXPECT_EQ(passes_, 1);
  }
}

TEST_F(TeacherCacheTest, AFolderThatVanishesStopsNothing) {
  TeacherCache cache(folder() + "/sub", kPlenty, "tiny");
  fs::remove_all(folder() + "/sub");
  read(cache, random_row({20}, 1));
  EXPECT_EQ(cache.stored(), 0);
  EXPECT_EQ(passes_, 1);
}

TEST_F(TeacherCacheTest, RefusesWhatCannotBe) {
  EXPECT_NE(message_of([&] { TeacherCache(folder(), 0, "tiny"); }).find("got 0"),
            std::string::npos);
  std::ofstream(folder() + "/file") << "no folder";
  EXPECT_NE(message_of([&] { TeacherCache(folder() + "/file", 1, "tiny"); }).find("/file"),
            std::string::npos);
}

TEST_F(TeacherCacheTest, TheObjectiveTakesTheSameStepWithIt) {
  TeacherCache cache(folder(), kPlenty, "tiny");
  const Row row = random_row({40, 24}, 3);
  const auto gradients = [&](TeacherCache* teacher) {
    DistillObjective objective(*model_, {.capacity = 6.0}, teacher);
    AdamW optimizer(gate_parameters(*model_), {});
    Measures measures;
    objective.accumulate(*model_, make_micro_batch(row), {0, 1, 64, row.num_targets()}, measures);
    return optimizer.gradients().clone();
  };
  const at::Tensor without = gradients(nullptr), first = gradients(&cache),
                   second = gradients(&cache);
  EXPECT_EQ(cache.found(), 2);
  EXPECT_TRUE(at::equal(first, second));
  EXPECT_LE((first - without).abs().max().item<double>(),
            1e-4 * without.abs().max().item<double>());
}

}  // namespace
}  // namespace coppice
