// Requests in, text out: the engine owns the model, one KV cache, and every sequence in it.
//
//   Engine engine(model, config, text_streams(tokenizer));
//   RequestId id = engine.submit(request);     // refuses what can never fit
//   while (engine.has_work())
//     for (const RequestOutput& output : engine.step()) ...
//
// A step is: plan (which sequences, how many tokens), reserve blocks, run the model once over all
// of them, draw tokens where a sequence has no more to read, commit, evict - or roll back. A fault
// in a step ends the request it belongs to, as an output with kError; the others go on, and their
// results are what they would have been. When a batch fails as a whole, its sequences are run one
// by one.
//
// Invariants: after every step each sequence holds exactly min(budget x L x Hkv, tokens read x L x
// Hkv) entries, or fewer where its budget was raised on the way; the blocks in use never exceed
// EngineConfig::max_blocks; a sequence's tokens depend on its own request alone: bit for bit with
// packed weights; token for token with float32 weights, whose products libtorch rounds differently
// with the number of rows.
//
// Sessions: a finished sequence may be kept (Request::keep_session) and continued by a later
// request, or forked to ask two things of one context. A session whose request fails or is
// cancelled is dropped with it, unless Request::keep_failed or cancel_and_keep() say otherwise; one
// whose request is refused by submit() is left as it was.
//
// Positions: a request is refused (kCapacity) when its tokens and max_tokens pass the model's
// trained range, unless EngineConfig::compact_positions. Without max_tokens, the generation ends
// with `length` at the end of the range, or of what the pool can hold; with compact positions,
// after as many tokens as the trained range.
//
// Not thread-safe: one thread calls it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "coppice/cache/kv_cache.h"
#include "coppice/engine/request.h"
#include "coppice/engine/scheduler.h"
#include "coppice/engine/session_image.h"
#include "coppice/engine/text_stream.h"
#include "coppice/eviction/policy.h"

namespace coppice {

struct Model;
struct ModelArgs;

struct EngineConfig {
  int64_t max_blocks = 0;                // the KV bound; see worst_case_blocks()
  at::ScalarType kv_dtype = at::kFloat;  // kFloat, kHalf or kBFloat16
  c10::Device device = c10::Device(c10::kCPU);
  EvictionConfig eviction = {};  // for requests that name none
  int64_t chunk_tokens = 256;    // for requests that name none
  SchedulerConfig scheduler = {};
  bool resident_cache = false;              // CacheConfig::resident
  bool compact_positions = false;           // keys are rotated to cache-relative positions
  std::vector<int64_t> end_token_ids = {};  // the union of all places that name one
  std::optional<int32_t> begin_token_id =
      {};  // what an empty prompt becomes; absent: it is refused
};

// Cache sizes of a model; max_blocks 0.
CacheConfig cache_config(const ModelArgs& args, at::ScalarType kv_dtype, c10::Device device);

// Most blocks one sequence of at most `total_tokens` read tokens holds at once under `eviction`,
// read in chunks of `chunk_tokens`: its budget, one chunk in flight, and the waste of half-filled
// blocks. total_tokens may be EvictionConfig::kUnbounded when the budget is not. Throws kCapacity
// when both are unbounded or the count passes int64.
int64_t worst_case_blocks(const CacheConfig& cache, const EvictionConfig& eviction,
                          int64_t chunk_tokens, int64_t total_tokens);

class Engine final {
 public:
  // `text` may be empty: outputs then have no text, and stop strings are refused. Throws
  // kInvalidArgument for settings that contradict each other or the model.
  Engine(std::shared_ptr<Model> model, const EngineConfig& config, TextStreamFactory text = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Checks the whole request and queues it. Throws kInvalidArgument, kNotFound (session, policy) or
  // kCapacity (can never fit); then nothing has changed.
  RequestId submit(const Request& request);
  // One pass. At most one output per request, in order of arrival. Throws nothing of a request's
  // own.
  std::vector<RequestOutput> step();
  bool has_work() const;
  // Ends a request now; it gives no further output and its blocks are free at once. keep_session:
  // what was read stays as a session, whose id is returned. False / nullopt: no such request.
  bool cancel(RequestId id);
  std::optional<SessionId> cancel_and_keep(RequestId id);
  // Gives a request that waits or runs another budget, and what is recent and the floor with it.
  // Entries over a lower budget go at once, those of a session it waits with too; a higher one lets
  // the cache grow. Throws kNotFound, kInvalidArgument (another policy, other pins), or kCapacity
  // where what it may hold then does not fit beside the others; then nothing has changed.
  void change_eviction(RequestId id, const EvictionConfig& eviction);

  // Runs `request` alone to its end; text and tokens joined. Throws the request's error. REQUIRES:
  // !has_work(). `on_output`, when given, sees each step's output and ends the request by returning
  // false (finish_reason kStop; the session is kept if the request asks for it).
  RequestOutput run(const Request& request,
                    const std::function<bool(const RequestOutput&)>& on_output = {});

  // Sessions. Throw kNotFound for an id that is not a kept session, or one that a request uses.
  void drop_session(SessionId session);
  SessionId fork_session(SessionId session);  // kCapacity: blocks are lacking, nothing has changed
  // A copy that can be stored, and a session made of one: kInvalidArgument where it does not fit
  // this model and cache, kCapacity where blocks are lacking; then nothing has changed.
  SessionImage export_session(SessionId session) const;
  SessionId import_session(const SessionImage& image);
  const std::vector<int32_t>& session_tokens(SessionId session) const;  // prompt and generated
  std::vector<SessionId> sessions() const;                              // kept and not in use

  const EngineConfig& config() const;
  const KvCache& cache() const;
  const Model& model() const;
  // The sequence of a running request, or of a session, in cache(): for tests, studies, validators.
  std::optional<SequenceId> sequence_of(RequestId id) const;
  std::optional<SequenceId> sequence_of_session(SessionId session) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace coppice
