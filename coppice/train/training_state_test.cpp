#include "coppice/train/training_state.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "coppice/core/mapped_file.h"
#include "coppice/train/plot.h"
#include "coppice/train/train_log.h"
#include "coppice/train/train_testing.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

struct Fixture {
  ScratchFolder folder;
  std::string path = folder.file("run.state");
  at::Tensor parameter = torch::arange(2000, torch::kFloat).view({20, 100});
  AdamW optimizer{{{"w", parameter}}, {}};
  TrainingState state{{{"seed", 1}}, {{"taken", 3}}, 5, 77, 1.5};
};

TEST(TrainingStateTest, ComesBackAsItWas) {
  Fixture f;
  f.optimizer.set_updates(9);
  f.optimizer.second_moment().fill_(0.25);
  save_state(f.path, f.state, f.optimizer);
  at::Tensor other = torch::zeros({20, 100});
  AdamW optimizer({{"w", other}}, {});
  const TrainingState read = load_state(f.path, optimizer);
  EXPECT_EQ(read.config, f.state.config);
  EXPECT_EQ(read.data, f.state.data);
  EXPECT_EQ(read.step, 5);
  EXPECT_EQ(read.tokens, 77);
  EXPECT_EQ(optimizer.updates(), 9);
  EXPECT_TRUE(at::equal(other, f.parameter)) << "the parameter itself";
  EXPECT_TRUE(at::equal(optimizer.second_moment(), f.optimizer.second_moment()));
}

TEST(TrainingStateTest, DamagedStatesAreRefusedAndChangeNothing) {
  Fixture f;
  save_state(f.path, f.state, f.optimizer);
  const std::string whole = read_text_file(f.path);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{7}, whole.size() / 2, whole.size() - 1}) {
    f.folder.write("cut.state", whole.substr(0, size));
    EXPECT_NE(message_of([&] { load_state(f.folder.file("cut.state"), f.optimizer); }), "");
  }
  at::Tensor other = torch::ones({20, 99});
  AdamW optimizer({{"w", other}}, {});
  EXPECT_NE(message_of([&] { load_state(f.path, optimizer); }), "");
  EXPECT_EQ(other.min().item<float>(), 1.0f);
}

// A child with a limit on file sizes: writing fails as on a full disk.
TEST(TrainingStateTest, AFullDiskKeepsTheStateBefore) {
  Fixture f;
  save_state(f.path, f.state, f.optimizer);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 1;
    try {
      f.state.step = 6;
      save_state(f.path, f.state, f.optimizer);
    } catch (const Error&) {
      code = 0;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the failure is told";
  EXPECT_EQ(load_state(f.path, f.optimizer).step, 5);
  int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(f.folder.path()))
    files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 1) << "no draft is left";
}

// Killed again and again while it saves without a pause: what is there is always whole.
TEST(TrainingStateTest, AKillInTheMiddleOfASaveLeavesAUsableState) {
  Fixture f;
  save_state(f.path, f.state, f.optimizer);
  for (int round = 0; round < 8; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) save_state(f.path, f.state, f.optimizer);
    }
    ::usleep(static_cast<useconds_t>(3000 + 2500 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(load_state(f.path, f.optimizer).step, 5);
  }
  f.folder.write("run.state.abc123", "left behind");
  f.folder.write("run.state.keep-me", "not a draft");
  remove_drafts(f.path);
  EXPECT_FALSE(std::filesystem::exists(f.folder.file("run.state.abc123")));
  EXPECT_TRUE(std::filesystem::exists(f.folder.file("run.state.keep-me")));
  EXPECT_TRUE(std::filesystem::exists(f.path));
}

TEST(TrainLogTest, KeepsWholeLinesUpToTheStep) {
  const ScratchFolder folder;
  const std::string path = folder.write(
      "log", "{\"step\":1}\n{\"step\":2}\n{\"eval\":{},\"step\":2}\n{\"step\":3}\n{\"ste");
  TrainLog log(path, 2);
  log.write({{"step", 3}});
  EXPECT_EQ(read_text_file(path),
            "{\"step\":1}\n{\"step\":2}\n{\"eval\":{},\"step\":2}\n{\"step\":3}\n");
}

TEST(PlotTest, DrawsEveryCurveAndSurvivesOddNumbers) {
  std::vector<Json> records;
  for (int i = 1; i <= 30; ++i)
    records.push_back({{"step", i},
                       {"kl", i == 5 ? 0.0 : 1.0 / i},
                       {"ntp", i == 7 ? Json() : Json(3.0)},
                       {"capacity", 0.5},
                       {"kept_per_layer", {100.0 - i, 50.0, 20.0 + i}}});
  const std::string svg = draw_svg(training_panels(records));
  EXPECT_TRUE(svg.starts_with("<svg"));
  std::size_t lines = 0;
  for (std::size_t at = svg.find("<polyline"); at != std::string::npos;
       at = svg.find("<polyline", at + 1))
    ++lines;
  EXPECT_EQ(lines, 3u + 3u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_TRUE(draw_svg(training_panels({})).ends_with("</svg>\n"));
}

}  // namespace
}  // namespace coppice
