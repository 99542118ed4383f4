// The one thread that steps the engine, and the way other threads reach it.
//
// Admission is first come, first served and by bytes: a request starts when the most it will ever
// hold fits beside what running requests may hold and what snapshots hold; snapshots give way. So
// blocks in use never pass the pool, nothing that runs is ever stopped, and one that can never fit
// is refused before it is queued. The queue is bounded: above it, submit() throws ApiError 429.
//
// Budgets that may change (LoopRequest::least) all stand at one level of kBudgetLevels: the highest
// at which everything fits that runs or waits for a place. Where not all of it fits at the lowest,
// the level falls as far as the first that waits needs to start, and where that does not make room
// it stays. Exact requests are never touched. A state that was read under more than one budget is
// not kept.
//
// Prompts are read up to their last whole chunk first; a snapshot of that state is kept where there
// is room, and later prompts with the same beginning go on from it (snapshot_store.h).
//
// submit(), cancel(), stop() and stats() may be called by any thread; run() by one.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "coppice/engine/engine.h"
#include "coppice/server/budget_range.h"
#include "coppice/server/mailbox.h"
#include "coppice/server/snapshot_store.h"

namespace coppice {

struct LoopConfig {
  int64_t max_requests = 64;    // waiting and running
  int64_t snapshot_blocks = 0;  // of the pool, that snapshots may hold
};

// What one choice asks for. With `least`, its budget may change on the way between that of
// request.eviction, which then has nothing unset either, and this.
struct LoopRequest {
  Request request;
  std::optional<EvictionConfig> least = {};
};
BudgetRange range_of(const LoopRequest& asked);  // REQUIRES: request.eviction is set

// Numbers for /metrics. Counts since the start; the rest as of the last step.
struct LoopStats {
  int64_t running = 0, waiting = 0;
  int64_t squeezed = 0;       // running with less than the budget they asked for
  int64_t ever_squeezed = 0;  // that have ended and had less at a time
  int64_t blocks_in_use = 0, blocks_peak = 0, blocks_total = 0, block_bytes = 0;
  int64_t snapshots = 0, snapshot_blocks = 0;
  int64_t steps = 0;
  int64_t started = 0, finished = 0, cancelled = 0, failed = 0, refused = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0, reused_tokens = 0, evicted_entries = 0;
  double step_seconds = 0.0;
  double first_token_seconds = 0.0;  // sum over requests, from submit() to the first token
  int64_t first_tokens = 0;
};

using CallId = int64_t;

class EngineLoop final {
 public:
  // `engine` must outlive it, and nobody else uses it while run() runs.
  EngineLoop(Engine& engine, const LoopConfig& config);

  // Queues the requests of one call: all of them are accepted or none. Throws ApiError 429 (the
  // queue is full) or 503 (stopping).
  CallId submit(std::vector<LoopRequest> requests, std::shared_ptr<Mailbox> mailbox);
  CallId submit(std::vector<Request> requests, std::shared_ptr<Mailbox> mailbox);  // exact ones
  // Ends what is left of a call; unknown calls are none. Its blocks are free after the step in
  // progress.
  void cancel(CallId call);

  // Copies of snapshots for storage, and the way back; both wait for the step in progress and throw
  // ApiError 503 when stopping. nullopt: there is no snapshot of exactly these tokens. False: it
  // does not fit among the snapshots; throws as Engine::import_session.
  std::optional<SessionImage> copy_snapshot(const std::vector<int32_t>& tokens,
                                            const EvictionConfig& eviction);
  bool adopt_snapshot(const SessionImage& image);
  bool keeps(std::string_view policy) const { return snapshots_.keeps(policy); }  // of no state

  // Steps until stop(). A fault of one request goes to its mailbox; others go on.
  void run();
  // Refuses new calls; run() returns when all others are done or `patience` has passed, which ends
  // them with an error.
  void stop(std::chrono::milliseconds patience);

  LoopStats stats() const;

 private:
  struct Call {
    CallId id = 0;
    std::vector<LoopRequest> requests;
    std::shared_ptr<Mailbox> mailbox;
    std::chrono::steady_clock::time_point submitted;
  };
  struct Job {
    CallId call = 0;
    int64_t choice = 0;
    Request request;
    std::shared_ptr<Mailbox> mailbox;
    std::chrono::steady_clock::time_point submitted;
    int64_t worst_blocks = 0;
    // Where its budget may change.
    BudgetRange range;
    std::vector<int64_t> worst_at;  // [kBudgetLevels + 1] blocks by level; empty: it is exact
    int64_t least_budget = 0;       // so far
    bool changed = false;           // since it started
    // While it runs.
    bool reading = false;  // the first part of the prompt, up to the snapshot
    std::optional<SessionId> session;
    int64_t reused = 0;
    int64_t generated = 0;
    std::chrono::steady_clock::time_point viewed = {};  // with Mailbox::wants_views

    // Most that it holds while budgets stand at a level.
    int64_t blocks_at(int level) const {
      return worst_at.empty() ? worst_blocks : worst_at[static_cast<std::size_t>(level)];
    }
  };

  void accept(Call call);
  void end_call(CallId call);
  void admit();
  const SnapshotStore::Snapshot* find_snapshot(const Job& job);
  void plan_levels(Job& job, std::optional<EvictionConfig> least);
  int64_t promised_at(int level) const;
  std::optional<int> level_to_start() const;
  bool take_level(Job& job, int level) const;
  void set_level(int level);
  void raise_level();
  void start(Job job);
  RequestId begin_reading(Job& job, int64_t have, int64_t boundary);
  RequestId begin_answer(Job& job, int64_t have);
  void deliver(RequestOutput output);
  void after_reading(Job job, RequestOutput output);
  void finish(Job& job);
  void fail_job(Job& job, ErrorCode code, const std::string& message);
  void fail_all(const std::string& message);
  void show_caches();
  void show_last(const Job& job, RequestOutput& output);
  void drop_if_kept(std::optional<SessionId> session);
  void step();
  void publish();
  void do_on_loop(const std::function<void()>& task);
  void run_tasks();
  bool collect(std::deque<Call>& calls, std::vector<CallId>& ended);
  int64_t free_blocks() const;

  Engine& engine_;
  const LoopConfig config_;
  SnapshotStore snapshots_;

  // The loop's own.
  std::deque<Job> waiting_;
  std::map<RequestId, Job> active_;
  int64_t promised_blocks_ = 0;  // to active_
  int level_ = kBudgetLevels;    // of the budgets that may change
  LoopStats own_;

  // Shared.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> inbox_;
  std::vector<CallId> cancelled_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool ended_ = false;         // run() has returned
  int64_t open_requests_ = 0;  // in the inbox, waiting or running
  int64_t refused_ = 0;
  CallId next_call_ = 1;
  std::optional<std::chrono::steady_clock::time_point> stop_at_;
  LoopStats published_;
};

}  // namespace coppice
