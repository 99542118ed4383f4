// What an Engine holds. Internal to the engine: engine.cpp is the public face and the checks of
// submit(), engine_step.cpp the step.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "coppice/attention/paged_backend.h"
#include "coppice/engine/engine.h"
#include "coppice/engine/pass.h"
#include "coppice/engine/sequence.h"
#include "coppice/models/model.h"

namespace coppice {

struct Session {
  SequenceContext context;
  bool in_use = false;  // by a request that waits; running requests hold their context themselves
};

// What a session's turns must agree on: everything but the budget, what is recent and the floor,
// whose defaults follow the budget, and the pins of tokens that were not read.
bool same_policy(const EvictionConfig& a, const EvictionConfig& b);

// One sequence's part of a step.
struct StepPart {
  Sequence* sequence = nullptr;
  int64_t tokens = 0;
  bool decoding = false;
  at::Tensor logits;  // [V] float32 on the CPU; undefined: no token is wanted
  std::vector<SampledToken> prompt_scores;
  RequestOutput output;
};

struct Engine::State {
  State(std::shared_ptr<Model> model, const EngineConfig& config, TextStreamFactory text);

  // Submitting.
  SequenceContext make_context(const Request& request) const;
  SequenceLimits make_limits(const Request& request, const SequenceContext& context,
                             const EvictionPolicy& policy) const;
  EvictionPolicy make_policy(const Request& request, const SequenceContext& context) const;
  int64_t most_new_tokens(const Request& request, const SequenceContext& context,
                          const EvictionConfig& eviction, int64_t chunk_tokens) const;
  const Session& idle_session(SessionId id) const;

  // Stepping.
  StepPlan plan() const;
  void admit(const std::vector<int64_t>& ids);
  std::vector<RequestOutput> refuse_first_waiting();
  void make_positions(std::span<StepPart> parts);
  void run(std::span<StepPart> parts);
  void forward(std::span<StepPart> parts);
  void score_prompts(std::span<StepPart> parts, const at::Tensor& hidden);
  void complete(StepPart& part);
  void fail_part(StepPart& part);
  void settle(StepPart& part, double seconds);
  void remove(const Sequence& sequence);
  SessionId store_session(Sequence& sequence);
  Sequence* find_running(RequestId id) const;
  Sequence* find_waiting(RequestId id) const;

  int64_t idle_blocks() const;

  std::shared_ptr<Model> model;
  EngineConfig config;
  std::string gate_kind;  // as Model::gate_kind
  at::Tensor inv_freq;    // [D/2] float32, the model's; undefined unless positions compact
  KvCache cache;
  PagedBackend backend;
  TextStreamFactory text;
  std::deque<std::unique_ptr<Sequence>> waiting;
  std::vector<std::unique_ptr<Sequence>> running;  // in order of arrival
  std::map<SessionId, Session> sessions;
  RequestId next_request = 1;
  SessionId next_session = 1;
};

}  // namespace coppice
