// What the loop does between two steps for who is no request: copies of snapshots, views of caches.
#include "coppice/core/error.h"
#include "coppice/server/api_error.h"
#include "coppice/server/engine_loop.h"

namespace coppice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenViews{80};

}  // namespace

void EngineLoop::run_tasks() {
  std::deque<std::packaged_task<void()>> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (auto& task : tasks) task();
}

// Runs `task` between two steps, and throws what it throws.
void EngineLoop::do_on_loop(const std::function<void()>& task) {
  std::future<void> done;
  {
    const std::lock_guard lock(mutex_);
    if (stop_at_ || ended_) throw ApiError(503, "the server is stopping", {}, "stopping");
    tasks_.emplace_back(task);
    done = tasks_.back().get_future();
    changed_.notify_one();
  }
  try {
    done.get();
  } catch (const std::future_error&) {
    throw ApiError(503, "the server is stopping", {}, "stopping");
  }
}

std::optional<SessionImage> EngineLoop::copy_snapshot(const std::vector<int32_t>& tokens,
                                                      const EvictionConfig& eviction) {
  std::optional<SessionImage> image;
  do_on_loop([&] {
    const auto* found = snapshots_.find_exact(tokens, eviction, engine_.config().chunk_tokens);
    if (found != nullptr) image = engine_.export_session(found->session);
  });
  return image;
}

bool EngineLoop::adopt_snapshot(const SessionImage& image) {
  bool taken = false;
  do_on_loop(
      [&] { taken = snapshots_.adopt(image, engine_.config().chunk_tokens, free_blocks()); });
  return taken;
}

// Clients that watch their cache get a view of it, not too often and none behind another.
void EngineLoop::show_caches() {
  for (auto& [id, job] : active_) {
    if (!job.mailbox->wants_views || Clock::now() - job.viewed < kBetweenViews) continue;
    const std::optional<SequenceId> sequence = engine_.sequence_of(id);
    if (!sequence || !job.mailbox->drained()) continue;
    if (engine_.cache().tokens_in_pass(*sequence) > 0) continue;  // a chunk is half read
    job.mailbox->put({job.choice, false, {}, view_cache(engine_.cache(), *sequence)});
    job.viewed = Clock::now();
  }
}

// The sequence was kept to be seen once more.
void EngineLoop::show_last(const Job& job, RequestOutput& output) {
  const auto sequence = engine_.sequence_of_session(*output.session);
  if (sequence) job.mailbox->put({job.choice, false, {}, view_cache(engine_.cache(), *sequence)});
  engine_.drop_session(*output.session);
  output.session.reset();
}

}  // namespace coppice
