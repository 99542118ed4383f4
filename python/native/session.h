// One token stream of a model as Python holds it, and the engine that forks of it share.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/conversation.h"
#include "python/native/model.h"

namespace coppice::python {

// An engine whose requests are stepped together by whoever waits for one of them. Everything but
// the constructor and drop_later() is called inside LoadedModel::run.
class EngineHost final {
 public:
  EngineHost(std::shared_ptr<LoadedModel> model, std::shared_ptr<Engine> engine)
      : model_(std::move(model)), engine_(std::move(engine)) {}

  LoadedModel& model() const { return *model_; }
  const std::shared_ptr<Engine>& engine() const { return engine_; }

  RequestId submit(const Request& request);
  RequestOutput next(RequestId id);  // its next output, after as many steps as it takes
  std::optional<SessionId> cancel_and_keep(RequestId id);
  // Of a session object that ends: at once, or at the next call where the engine is stepping.
  void drop_later(std::optional<RequestId> request, std::optional<SessionId> session);

 private:
  void sweep();

  std::shared_ptr<LoadedModel> model_;
  std::shared_ptr<Engine> engine_;
  std::map<RequestId, std::deque<RequestOutput>> outputs_;  // of requests that somebody waits for
  std::mutex ended_mutex_;
  std::vector<std::pair<std::optional<RequestId>, std::optional<SessionId>>> ended_;
};

// What a session holds in each row, by rising position; rows are layer x Hkv + head.
struct KeptEntries {
  int64_t layers = 0, kv_heads = 0, tokens_seen = 0;
  int64_t bytes = 0;                // of the blocks that hold them
  std::vector<int64_t> cu_entries;  // [rows + 1]
  std::vector<int64_t> positions;   // [entries]
  std::vector<float> scores;        // [entries]; NaN where the budget is unbounded
};

struct RowEntries {
  at::Tensor positions;     // [L] int64, rising
  at::Tensor keys, values;  // [L, D], of the cache's type
  at::Tensor log_beta;      // [L] float32
};

struct SessionOptions {
  ModelOptions cache;             // policy, budget, chunk, positions, kv_dtype
  std::optional<int64_t> tokens;  // that the text is to come to; absent: as Runtime::longest_tokens
  int64_t sequences = 1;          // forks included
  std::optional<GenerationOptions> chat;  // absent: text as it stands
};

class Session final {
 public:
  Session(std::shared_ptr<LoadedModel> model, const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Begins a request, after ending one that still runs.
  void start(std::vector<int32_t> ids, const SamplingParams& sampling, bool score_prompt,
             const std::vector<std::string>& images);
  void start_turn(const std::string& user, const SamplingParams& sampling,
                  const std::vector<std::string>& images);
  // The running request's next output; nothing where none runs. Throws what ended it; the session
  // then has what was read.
  std::optional<RequestOutput> next();
  void stop();  // ends the running request, if any; the session has what was read and written
  bool running() const { return request_.has_value(); }

  std::shared_ptr<Session> fork();  // REQUIRES: no chat
  std::vector<int32_t> tokens();    // read and written, in order
  KeptEntries kept();
  RowEntries row(int64_t layer, int64_t head);
  EvictionConfig eviction();     // in force, nothing unset
  std::string messages() const;  // of the chat, JSON

 private:
  Session(std::shared_ptr<EngineHost> host, SessionId session)
      : host_(std::move(host)), session_(session) {}

  void begin(const Request& request);
  void stop_inside();
  void finish(const RequestOutput& output);
  std::optional<SequenceId> sequence() const;
  void forget_session();

  std::shared_ptr<EngineHost> host_;
  std::unique_ptr<Conversation> chat_;
  std::optional<Conversation::Turn> turn_;  // whose answer is on its way
  RequestOutput answer_;                    // what has come of it
  std::optional<RequestId> request_;
  std::optional<SessionId> session_;
  std::vector<int32_t> tokens_;  // of the running request, before what is in answer_
};

}  // namespace coppice::python
