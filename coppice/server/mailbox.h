// What the engine's thread sends to the thread that serves a client.
//
// First comes either one update with `accepted`, or one with an error in its output and nothing
// more. Then the outputs of every choice, the last of each with finished(). Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "coppice/engine/request.h"
#include "coppice/server/cache_view.h"

namespace coppice {

struct Update {
  int64_t choice = 0;  // which of the call's requests
  bool accepted = false;
  RequestOutput output;                          // empty with `accepted`
  std::optional<CacheView> view = std::nullopt;  // with kv.trace, now and then
};

class Mailbox final {
 public:
  void put(Update update) {
    {
      const std::lock_guard lock(mutex_);
      updates_.push_back(std::move(update));
    }
    changed_.notify_one();
  }

  // The next update, in order; nothing when none came within `patience`.
  std::optional<Update> take(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [this] { return !updates_.empty(); });
    if (updates_.empty()) return std::nullopt;
    std::optional<Update> update = std::move(updates_.front());
    updates_.pop_front();
    return update;
  }

  // Whether the client has taken everything.
  bool drained() {
    const std::lock_guard lock(mutex_);
    return updates_.empty();
  }

  bool wants_views = false;  // set before anybody else has it

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Update> updates_;
};

}  // namespace coppice
