#include "coppice/ops/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "coppice/core/error.h"

namespace coppice::ops {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(60);
constexpr uint32_t kSpinsBeforeYield = 1000;  // some tens of microseconds

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Set while this thread runs a piece: loops inside it stay on this thread.
thread_local bool inside_piece = false;

struct Job {
  detail::PieceFn fn = nullptr;
  const void* context = nullptr;
  int64_t end = 0;
  int64_t grain = 1;
  int64_t shares = 0;  // of a guided loop: a piece is what is left divided by this; 0 else
  alignas(64) std::atomic<int64_t> next{0};  // alone: threads take turns to own its line
  alignas(64) std::atomic<bool> failed{false};
  std::exception_ptr error;  // written by the thread that set `failed`

  // Takes the next piece; false when none is left.
  bool take(int64_t& from, int64_t& to) {
    from = next.load(std::memory_order_relaxed);
    do {
      if (from >= end) return false;
      int64_t size = grain;
      if (shares > 0) size = std::max(size, (end - from) / shares);
      to = end - from > size ? from + size : end;
    } while (!next.compare_exchange_weak(from, to, std::memory_order_relaxed));
    return true;
  }

  void work() {
    int64_t from = 0, to = 0;
    inside_piece = true;
    while (!failed.load(std::memory_order_relaxed) && take(from, to)) {
      try {
        fn(context, from, to);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
    }
    inside_piece = false;
  }
};

// The state word: bit 0 says that a job is open to enter, bits 1 to 15 count the helpers inside,
// and the rest number the jobs. A helper enters only while the bit is set; the owner clears it and
// waits for the count to reach zero, so no helper ever touches a job that is gone.
class Pool final {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
  }
  ~Pool() {
    stop_.store(true);
    wake_.fetch_add(1);
    wake_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }
  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // One owner at a time: the caller holds the mutex of Shared.
  void run(Job& job) {
    job_ = &job;
    state_.fetch_add(kJobUnit | kOpen);
    wake_.fetch_add(1);
    if (sleepers_.load() > 0) wake_.notify_all();
    job.work();
    state_.fetch_and(~kOpen);
    for (uint32_t spins = 0; (state_.load(std::memory_order_acquire) & kInside) != 0; ++spins) {
      if (spins < kSpinsBeforeYield) {
        pause_briefly();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  static constexpr uint64_t kOpen = 1;
  static constexpr uint64_t kHelper = 2;
  static constexpr uint64_t kInside = 0xfffe;
  static constexpr uint64_t kJobUnit = 0x10000;

  // True once this helper is inside job number > served.
  bool enter(uint64_t& served) {
    uint64_t state = state_.load(std::memory_order_acquire);
    while ((state & kOpen) != 0 && state / kJobUnit != served) {
      if (state_.compare_exchange_weak(state, state + kHelper, std::memory_order_acquire)) {
        served = state / kJobUnit;
        return true;
      }
    }
    return false;
  }

  void help() {
    uint64_t served = 0;
    auto idle_since = Clock::now();
    uint32_t spins = 0;
    while (true) {
      if (enter(served)) {
        job_->work();
        state_.fetch_sub(kHelper, std::memory_order_release);
        idle_since = Clock::now();
        spins = 0;
      } else if (++spins % 16 != 0 || Clock::now() - idle_since < kSpin) {
        pause_briefly();
      } else {
        if (stop_.load()) return;
        sleep(served);
        idle_since = Clock::now();
      }
    }
  }

  void sleep(uint64_t served) {
    const uint32_t ticket = wake_.load();
    sleepers_.fetch_add(1);
    const uint64_t state = state_.load();
    const bool has_work = (state & kOpen) != 0 && state / kJobUnit != served;
    if (!has_work && !stop_.load()) wake_.wait(ticket);
    sleepers_.fetch_sub(1);
  }

  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<uint32_t> wake_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  Job* job_ = nullptr;  // published by state_
  std::vector<std::thread> helpers_;
};

// Processors by the cgroup's quota, rounded up; 0 when there is none.
int cgroup_processors() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0.0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0.0) return 0;
  const double share = std::strtod(quota.c_str(), nullptr) / period;
  return share > 0.0 && share < 1024.0 ? static_cast<int>(share + 0.999) : 0;
}

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = sched_getaffinity(0, sizeof(set), &set) == 0
                  ? CPU_COUNT(&set)
                  : static_cast<int>(std::thread::hardware_concurrency());
  const int limit = cgroup_processors();
  if (limit > 0) count = std::min(count, limit);
  return std::clamp(count, 1, 1024);
}

struct Shared {
  std::mutex mutex;  // held by the owner of the running job
  std::atomic<int> threads{usable_processors()};
  std::unique_ptr<Pool> pool;  // made by the first loop that needs it
};

Shared& shared() {
  static Shared instance;
  return instance;
}

}  // namespace

int num_threads() { return shared().threads.load(); }

void set_num_threads(int count) {
  if (count < 1 || count > 1024) fail_argument("threads: expected 1 to 1024, got {}", count);
  Shared& s = shared();
  const std::lock_guard lock(s.mutex);
  s.threads.store(count);
  s.pool.reset();
}

namespace detail {

void run_pieces(const Loop& loop, PieceFn fn, const void* context) {
  const auto [begin, end, least, guided] = loop;
  if (begin >= end) return;
  const int64_t grain = std::clamp<int64_t>(least, 1, end - begin);
  Shared& s = shared();
  const bool single = end - begin <= grain || inside_piece || s.threads.load() == 1;
  std::unique_lock lock(s.mutex, std::defer_lock);
  if (single || !lock.try_lock()) {
    for (int64_t from = begin; from < end;) {
      const int64_t to = end - from > grain ? from + grain : end;
      fn(context, from, to);
      from = to;
    }
    return;
  }
  if (s.pool == nullptr) s.pool = std::make_unique<Pool>(s.threads.load());
  Job job;
  job.fn = fn;
  job.context = context;
  job.end = end;
  job.grain = grain;
  job.shares = guided ? s.pool->threads() : 0;
  job.next.store(begin);
  s.pool->run(job);
  if (job.failed.load()) std::rethrow_exception(job.error);
}

}  // namespace detail
}  // namespace coppice::ops
