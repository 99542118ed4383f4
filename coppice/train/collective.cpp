#include "coppice/train/collective.h"

#include <torch/torch.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "coppice/core/error.h"

namespace coppice {
namespace {

class Single final : public Collective {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  void sum(at::Tensor&) override {}
};

class Gathering final : public Collective {
 public:
  explicit Gathering(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}
  int64_t rank() const override { return backend_->getRank(); }
  int64_t size() const override { return backend_->getSize(); }

  // Gathered and added here: a reduction inside the library may add in another order in each
  // process.
  void sum(at::Tensor& tensor) override {
    const torch::NoGradGuard no_gradient;
    std::vector<std::vector<at::Tensor>> parts(1);
    for (int64_t i = 0; i < size(); ++i) parts[0].push_back(torch::empty_like(tensor));
    std::vector<at::Tensor> own = {tensor.contiguous()};
    backend_->allgather(parts, own)->wait();
    tensor.copy_(parts[0][0]);
    for (int64_t i = 1; i < size(); ++i) tensor.add_(parts[0][static_cast<std::size_t>(i)]);
  }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int64_t number_of(const char* name, int64_t low, int64_t high) {
  const std::string text = environment(name);
  int64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size() || value < low || value > high)
    fail_argument("{}: expected a number from {} to {} in the environment, got \"{}\"", name, low,
                  high, text);
  return value;
}

}  // namespace

std::unique_ptr<Collective> make_single() { return std::make_unique<Single>(); }

std::unique_ptr<Collective> make_from_environment(int64_t timeout_seconds) {
  if (environment("WORLD_SIZE").empty()) return make_single();
  const int64_t size = number_of("WORLD_SIZE", 1, 1 << 16);
  if (size == 1) return make_single();
  const int64_t rank = number_of("RANK", 0, size - 1);
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(number_of("MASTER_PORT", 1, 65535));
  // Under torchrun its agent may hold the store already.
  options.isServer = rank == 0 && environment("TORCHELASTIC_USE_AGENT_STORE") != "True";
  options.numWorkers = static_cast<std::size_t>(size);
  options.waitWorkers = false;
  options.timeout = std::chrono::seconds(timeout_seconds);
  const std::string host = environment("MASTER_ADDR");
  if (host.empty()) fail_argument("MASTER_ADDR: expected a host in the environment");
  try {
    const auto store = c10::make_intrusive<c10d::PrefixStore>(
        "coppice/" + environment("TORCHELASTIC_RESTART_COUNT"),
        c10::make_intrusive<c10d::TCPStore>(host, options));
    const auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
    const std::string interface = environment("GLOO_SOCKET_IFNAME");
    gloo->devices.push_back(interface.empty()
                                ? c10d::ProcessGroupGloo::createDefaultDevice()
                                : c10d::ProcessGroupGloo::createDeviceForInterface(interface));
    return std::make_unique<Gathering>(c10::make_intrusive<c10d::ProcessGroupGloo>(
        store, static_cast<int>(rank), static_cast<int>(size), gloo));
  } catch (const std::exception& error) {
    const std::string_view what = error.what();
    fail_argument("process {} of {} did not find the others at {}:{}: {}", rank, size, host,
                  options.port, what.substr(0, what.find('\n')));
  }
}

}  // namespace coppice
