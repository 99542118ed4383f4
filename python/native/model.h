// A loaded model as Python holds it: the Runtime of apps/ and the lock of whoever runs it.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "apps/runtime.h"
#include "coppice/core/error.h"

namespace coppice::python {

// Engines of one model do not step at once, whatever threads they are called from. The lock is
// taken and work is done without the GIL, so that a policy in Python can take it.
class LoadedModel final {
 public:
  explicit LoadedModel(const ModelOptions& options) : runtime_(options) {}

  const Runtime& runtime() const { return runtime_; }

  // Whether this thread is inside run(): the caller is a policy, or garbage that ends meanwhile.
  bool runs_here() const { return runner_ == std::this_thread::get_id(); }

  // work() with the lock and without the GIL. Throws kInvalidArgument from inside itself.
  template <typename Work>
  auto run(Work&& work) {
    if (runs_here())
      fail_argument("a policy was called to score, and may not use its model meanwhile");
    const pybind11::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    const Running running(runner_);
    return work();
  }

 private:
  struct Running {
    explicit Running(std::atomic<std::thread::id>& runner) : runner_(runner) {
      runner_ = std::this_thread::get_id();
    }
    ~Running() { runner_ = std::thread::id(); }
    std::atomic<std::thread::id>& runner_;
  };

  Runtime runtime_;
  std::mutex mutex_;
  std::atomic<std::thread::id> runner_;
};

}  // namespace coppice::python
