#include "coppice/server/engine_loop.h"

#include <algorithm>
#include <exception>

#include "coppice/core/error.h"
#include "coppice/core/log.h"
#include "coppice/server/api_error.h"
#include "coppice/server/request_plan.h"

namespace coppice {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

RequestOutput error_output(ErrorCode code, const std::string& message) {
  RequestOutput output;
  output.finish_reason = FinishReason::kError;
  output.error = RequestError{code, message};
  return output;
}

}  // namespace

EngineLoop::EngineLoop(Engine& engine, const LoopConfig& config)
    : engine_(engine), config_(config), snapshots_(engine, config.snapshot_blocks) {
  publish();
}

BudgetRange range_of(const LoopRequest& asked) {
  const EvictionConfig& most = *asked.request.eviction;
  return {.most = most, .least = asked.least.value_or(most)};
}

CallId EngineLoop::submit(std::vector<Request> requests, std::shared_ptr<Mailbox> mailbox) {
  std::vector<LoopRequest> exact;
  for (Request& request : requests) exact.push_back({.request = std::move(request)});
  return submit(std::move(exact), std::move(mailbox));
}

CallId EngineLoop::submit(std::vector<LoopRequest> requests, std::shared_ptr<Mailbox> mailbox) {
  const auto count = static_cast<int64_t>(requests.size());
  const std::lock_guard lock(mutex_);
  if (stop_at_) throw ApiError(503, "the server is stopping", {}, "stopping");
  if (count > config_.max_requests) {
    throw ApiError(400,
                   fmt::format("n: {} choices at once, this server takes at most {}", count,
                               config_.max_requests),
                   "n", "invalid_value");
  }
  if (open_requests_ + count > config_.max_requests) {
    ++refused_;
    throw ApiError(429,
                   fmt::format("{} requests are running or waiting, the most this server takes; "
                               "try again later",
                               open_requests_),
                   {}, "too_many_requests");
  }
  open_requests_ += count;
  inbox_.push_back({.id = next_call_,
                    .requests = std::move(requests),
                    .mailbox = std::move(mailbox),
                    .submitted = Clock::now()});
  changed_.notify_one();
  return next_call_++;
}

void EngineLoop::cancel(CallId call) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(call);
  changed_.notify_one();
}

void EngineLoop::stop(std::chrono::milliseconds patience) {
  const std::lock_guard lock(mutex_);
  const auto until = Clock::now() + patience;
  stop_at_ = stop_at_ ? std::min(*stop_at_, until) : until;
  changed_.notify_one();
}

LoopStats EngineLoop::stats() const {
  const std::lock_guard lock(mutex_);
  LoopStats stats = published_;
  stats.refused = refused_;
  return stats;
}

// What came in since the last step; waits for something to do. False: it is time to end.
bool EngineLoop::collect(std::deque<Call>& calls, std::vector<CallId>& ended) {
  std::unique_lock lock(mutex_);
  const bool idle = waiting_.empty() && active_.empty();
  if (idle) {
    changed_.wait(lock, [this] {
      return !inbox_.empty() || !cancelled_.empty() || !tasks_.empty() || stop_at_;
    });
  }
  if (stop_at_ && ((idle && inbox_.empty()) || Clock::now() >= *stop_at_)) return false;
  calls.swap(inbox_);
  ended.swap(cancelled_);
  return true;
}

void EngineLoop::run() {
  while (true) {
    std::deque<Call> calls;
    std::vector<CallId> ended;
    if (!collect(calls, ended)) break;
    run_tasks();
    for (Call& call : calls) accept(std::move(call));
    for (const CallId call : ended) end_call(call);
    try {
      admit();
      if (engine_.has_work()) step();
    } catch (const std::exception& error) {
      log_warning("a step failed: {}", error.what());
      fail_all(error.what());
    }
    publish();
  }
  fail_all("the server is stopping");
  std::deque<Call> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(inbox_);
    ended_ = true;
    tasks_.clear();  // who waits is told by the broken promise
  }
  for (const Call& call : left) {
    call.mailbox->put({0, false, error_output(ErrorCode::kInternal, "the server is stopping")});
  }
  while (snapshots_.drop_oldest()) {
  }
  publish();
}

// Plans all requests of a call, then queues them.
void EngineLoop::accept(Call call) {
  std::deque<Job> jobs;
  try {
    for (std::size_t i = 0; i < call.requests.size(); ++i) {
      Job job;
      job.call = call.id;
      job.choice = static_cast<int64_t>(i);
      job.request = std::move(call.requests[i].request);
      job.stops = std::move(call.requests[i].marks);
      job.mailbox = call.mailbox;
      job.submitted = call.submitted;
      plan_levels(job, std::move(call.requests[i].least));
      jobs.push_back(std::move(job));
    }
  } catch (const Error& error) {
    ++own_.failed;
    {
      const std::lock_guard lock(mutex_);
      open_requests_ -= static_cast<int64_t>(call.requests.size());
    }
    call.mailbox->put({0, false, error_output(error.code(), error.what())});
    return;
  }
  call.mailbox->put({0, true, {}});
  for (Job& job : jobs) waiting_.push_back(std::move(job));
}

void EngineLoop::end_call(CallId call) {
  const auto before = static_cast<int64_t>(waiting_.size());
  std::erase_if(waiting_, [call](const Job& job) { return job.call == call; });
  int64_t ended = before - static_cast<int64_t>(waiting_.size());
  for (auto it = active_.begin(); it != active_.end();) {
    if (it->second.call != call) {
      ++it;
      continue;
    }
    engine_.cancel(it->first);
    drop_if_kept(it->second.session);
    promised_blocks_ -= it->second.worst_blocks;
    it = active_.erase(it);
    ++ended;
  }
  own_.cancelled += ended;
  const std::lock_guard lock(mutex_);
  open_requests_ -= ended;
}

int64_t EngineLoop::free_blocks() const {
  return engine_.config().max_blocks - promised_blocks_ - snapshots_.blocks();
}

// What the job can go on from; it is the last one to give way now.
const SnapshotStore::Snapshot* EngineLoop::find_snapshot(const Job& job) {
  return snapshots_.find(job.request.prompt, job.request.images, *job.request.eviction,
                         job.request.chunk_tokens.value_or(engine_.config().chunk_tokens));
}

void EngineLoop::admit() {
  const auto most = static_cast<std::size_t>(engine_.config().scheduler.max_sequences);
  while (!waiting_.empty() && active_.size() < most) {
    const std::optional<int> level = level_to_start();
    if (!level) return;
    Job job = std::move(waiting_.front());
    waiting_.pop_front();
    take_level(job, *level);
    find_snapshot(job);
    set_level(*level);
    while (job.worst_blocks > free_blocks() && snapshots_.drop_oldest()) {
    }
    start(std::move(job));
  }
  raise_level();  // nothing waits, or not for want of memory
}

void EngineLoop::start(Job job) {
  ++own_.started;
  promised_blocks_ += job.worst_blocks;
  try {
    const bool whole = job.request.score_prompt;  // every token of it is read anew
    const auto* snapshot = whole ? nullptr : find_snapshot(job);
    if (snapshot != nullptr) {
      job.session = engine_.fork_session(snapshot->session);
      job.reused = static_cast<int64_t>(snapshot->tokens.size());
    }
    if (whole || !snapshots_.keeps(job.request.eviction->policy)) {
      job.stops.clear();
    } else {
      plan_stops(job);
    }
    const RequestId id = go_on(job, job.reused);
    active_.emplace(id, std::move(job));
  } catch (const Error& error) {
    drop_if_kept(job.session);
    fail_job(job, error.code(), error.what());
  }
}

void EngineLoop::step() {
  const Clock::time_point begin = Clock::now();
  std::vector<RequestOutput> outputs = engine_.step();
  ++own_.steps;
  own_.step_seconds += seconds_since(begin);
  for (RequestOutput& output : outputs) deliver(std::move(output));
  show_caches();
}

void EngineLoop::deliver(RequestOutput output) {
  const auto found = active_.find(output.id);
  if (found == active_.end()) return;
  Job& job = found->second;
  if (job.reading) {
    if (!output.finished()) return;
    Job moved = std::move(job);
    active_.erase(found);
    return after_reading(std::move(moved), std::move(output));
  }
  if (job.generated == 0 && !output.tokens.empty()) {
    own_.first_token_seconds += seconds_since(job.submitted);
    ++own_.first_tokens;
  }
  const auto fresh = static_cast<int64_t>(output.tokens.size());
  job.generated += fresh;
  own_.generated_tokens += fresh;
  output.usage.tokens.reused = job.reused;
  if (!job.worst_at.empty())
    output.usage.kv.least_budget_entries = job.least_budget * engine_.cache().config().num_rows();
  if (!output.finished()) {
    if (fresh > 0 || !output.prompt_scores.empty())
      job.mailbox->put({job.choice, false, std::move(output)});
    return;
  }
  if (output.error) {
    ++own_.failed;
    drop_if_kept(job.session);
  } else {
    ++own_.finished;
    own_.prompt_tokens += output.usage.tokens.prompt;
    own_.reused_tokens += job.reused;
    own_.evicted_entries += output.usage.kv.evicted_entries;
  }
  if (output.session) show_last(job, output);
  finish(job);
  job.mailbox->put({job.choice, false, std::move(output)});
  active_.erase(found);
}

void EngineLoop::finish(Job& job) {
  promised_blocks_ -= job.worst_blocks;
  if (!job.worst_at.empty() && job.least_budget < job.range.most.budget_entries)
    ++own_.ever_squeezed;
  const std::lock_guard lock(mutex_);
  --open_requests_;
}

void EngineLoop::fail_job(Job& job, ErrorCode code, const std::string& message) {
  ++own_.failed;
  finish(job);
  RequestOutput output = error_output(code, message);
  job.mailbox->put({job.choice, false, std::move(output)});
}

void EngineLoop::fail_all(const std::string& message) {
  for (Job& job : waiting_) {
    promised_blocks_ += job.worst_blocks;  // was not yet: finish() takes it off
    fail_job(job, ErrorCode::kInternal, message);
  }
  waiting_.clear();
  for (auto& [id, job] : active_) {
    engine_.cancel(id);
    drop_if_kept(job.session);
    fail_job(job, ErrorCode::kInternal, message);
  }
  active_.clear();
}

// A session whose request was cancelled or refused before it ran stays in the engine.
void EngineLoop::drop_if_kept(std::optional<SessionId> session) {
  if (!session) return;
  const std::vector<SessionId> kept = engine_.sessions();
  if (std::find(kept.begin(), kept.end(), *session) != kept.end()) engine_.drop_session(*session);
}

void EngineLoop::publish() {
  const KvCache& cache = engine_.cache();
  own_.running = static_cast<int64_t>(active_.size());
  own_.waiting = static_cast<int64_t>(waiting_.size());
  own_.squeezed = std::count_if(active_.begin(), active_.end(), [](const auto& item) {
    const Job& job = item.second;
    return !job.worst_at.empty() &&
           job.request.eviction->budget_entries < job.range.most.budget_entries;
  });
  own_.blocks_in_use = cache.blocks_in_use();
  own_.blocks_peak = cache.peak_blocks();
  own_.blocks_total = engine_.config().max_blocks;
  own_.block_bytes = cache.config().block_bytes();
  own_.snapshots = snapshots_.size();
  own_.snapshot_blocks = snapshots_.blocks();
  const std::lock_guard lock(mutex_);
  published_ = own_;
}

}  // namespace coppice
