// One call's answer, from the queue to the last byte: whole or as a stream of events.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/server/api_error.h"
#include "coppice/server/engine_loop.h"
#include "coppice/server/replies.h"

namespace coppice {

struct AnswerOptions {
  int64_t n = 1;  // choices of each prompt
  bool include_usage = false;
  bool logprobs = false;
  bool scores_prompt = false;             // echo and logprobs
  std::optional<CacheConfig> trace = {};  // kv.trace: sizes of the cache
  BudgetRange range;                      // of the settings in force
  int64_t rows = 1;                       // of the cache
  std::vector<int64_t> keep = {};         // messages whose tokens are pinned
  std::vector<int64_t> mark = {};         // after which states are kept
  ReplyFormat format = {};                // of a chat's answers
};

// Seconds since 1970.
int64_t unix_time();

class Answer final {
 public:
  // `tokenizer` and `loop` must outlive it. `client_gone` is asked several times a second while
  // there is nothing to send.
  Answer(const ReplyHead& head, const AnswerOptions& options, const Tokenizer& tokenizer,
         EngineLoop& loop, std::function<bool()> client_gone);
  ~Answer();  // cancels what is not done
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  // Queues the requests, `starts` being the text that stands before each answer, and waits until
  // the engine has taken them. Throws ApiError: the engine refused, the queue is full, or the
  // client is gone (499).
  void begin(std::vector<LoopRequest> requests, std::vector<std::string> starts);
  // The whole answer. Throws ApiError.
  Json wait();
  // Server-sent events up to [DONE]; a fault on the way is an event with an error, and the last. A
  // client that is gone ends it.
  void stream(const std::function<bool(std::string_view)>& write);

 private:
  Update next();
  void join(Choice& choice, Update& update);
  std::optional<Choice> take_fresh(Update& update);
  bool done() const;
  Json usage() const;
  // A line of the log with the request's id.
  void log_end(const char* message, Json fields) const;
  void log_fault(const ApiError& error) const;

  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  const ReplyHead head_;
  const AnswerOptions options_;
  const Tokenizer& tokenizer_;
  EngineLoop& loop_;
  const std::function<bool()> client_gone_;
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  CallId call_ = 0;
  bool open_ = false;  // the loop may still have work for it
  std::vector<Choice> choices_;
  std::vector<ReplyParser> parsers_;  // [choices]
  std::vector<std::string> starts_;
  std::vector<int32_t> traced_prompt_;
  std::size_t finished_ = 0;
};

}  // namespace coppice
