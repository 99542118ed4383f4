#include "coppice/train/collective.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "coppice/loader/safetensors_file.h"
#include "coppice/train/budget_objective.h"
#include "coppice/train/distill_objective.h"
#include "coppice/train/train_testing.h"
#include "coppice/train/trainer.h"
#include "coppice/train/training_state.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  socklen_t size = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

// Three steps of a tiny run, whose state goes to `state_path` where this process is the first.
template <typename Loss>
void train_tiny(Collective& collective, const std::string& data, const std::string& state_path,
                const std::function<Loss(Model&)>& make_objective) {
  const Tokenizer tokenizer = byte_tokenizer();
  const DocumentEncoder encoder(tokenizer, nullptr);
  std::vector<DocumentFile> files;
  files.push_back(DocumentFile::open(data));
  DocumentStream stream(files, {}, encoder, {.length = 48});
  Packer packer(stream, 48, 6, 2);
  const std::shared_ptr<Model> model = tiny_model();
  Loss objective = make_objective(*model);
  TrainerConfig config;
  config.steps = 3;
  config.batch_rows = 4;
  config.schedule = {.peak = 3e-4, .floor = 1e-4, .warmup = 1};
  config.save_every = 0;
  config.state_path = state_path;
  Trainer trainer(*model, packer, objective, collective, config);
  EXPECT_TRUE(trainer.run());
}

void train_both(Collective& collective, const std::string& data, const std::string& state_path) {
  train_tiny<DistillObjective>(collective, data, state_path, [](Model& model) {
    return DistillObjective(model, {.capacity = 6.0});
  });
  train_tiny<BudgetObjective>(collective, data, state_path + "-cut", [](Model& model) {
    return BudgetObjective(model, {.least = 6.0, .most = 16.0});
  });
}

// One process of the test below, which starts this very program anew.
TEST(CollectiveTest, DISABLED_Process) {
  const char* folder = std::getenv("COPPICE_TEST_FOLDER");
  ASSERT_NE(folder, nullptr);
  const std::unique_ptr<Collective> collective = make_from_environment(60);
  at::Tensor tensor = torch::full({3}, static_cast<double>(collective->rank() + 1));
  collective->sum(tensor);
  EXPECT_EQ(tensor[2].item<float>(), 3.0f);
  train_both(*collective, std::string(folder) + "/data.jsonl", std::string(folder) + "/two");
}

pid_t start_process(const ScratchFolder& folder, int rank, int port) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", "2", 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  ::setenv("COPPICE_TEST_FOLDER", folder.path().c_str(), 1);
  ::execl("/proc/self/exe", "process", "--gtest_filter=CollectiveTest.DISABLED_Process",
          "--gtest_also_run_disabled_tests", nullptr);
  ::_exit(127);
}

TEST(CollectiveTest, TwoProcessesEqualOne) {
  const ScratchFolder folder;
  folder.write("data.jsonl", random_documents(40, 120, 11));
  const int port = free_port();
  const pid_t first = start_process(folder, 0, port), second = start_process(folder, 1, port);
  const std::unique_ptr<Collective> single = make_single();
  train_both(*single, folder.file("data.jsonl"), folder.file("one"));
  for (const pid_t child : {first, second}) {
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  for (const char* objective : {"", "-cut"}) {
    const SafetensorsFile one = SafetensorsFile::open(folder.file("one") + objective);
    const SafetensorsFile two = SafetensorsFile::open(folder.file("two") + objective);
    const auto values = [](const SafetensorsFile& file, const char* name) {
      const auto bytes = file.find(name)->bytes;
      return torch::from_blob(const_cast<std::byte*>(bytes.data()),
                              {static_cast<int64_t>(bytes.size() / 4)}, torch::kFloat);
    };
    for (const char* name : {"values", "first_moment"}) {
      const at::Tensor a = values(one, name), b = values(two, name);
      EXPECT_LT((a - b).abs().max().item<double>(), 1e-6) << name << objective;
      EXPECT_GT(a.abs().max().item<double>(), 1e-4) << name << objective;
    }
    EXPECT_EQ(one.metadata().at("data"), two.metadata().at("data"));
  }
}

TEST(CollectiveTest, OddEnvironmentsAreRefused) {
  ::setenv("WORLD_SIZE", "two", 1);
  EXPECT_NE(message_of([] { make_from_environment(1); }).find("WORLD_SIZE"), std::string::npos);
  ::setenv("WORLD_SIZE", "2", 1);
  ::setenv("RANK", "2", 1);
  EXPECT_NE(message_of([] { make_from_environment(1); }).find("RANK"), std::string::npos);
  ::setenv("RANK", "1", 1);
  ::setenv("MASTER_PORT", "0", 1);
  EXPECT_NE(message_of([] { make_from_environment(1); }).find("MASTER_PORT"), std::string::npos);
  ::unsetenv("RANK");
  ::unsetenv("MASTER_PORT");
  ::unsetenv("WORLD_SIZE");
  EXPECT_EQ(make_from_environment(1)->size(), 1);
}

}  // namespace
}  // namespace coppice
