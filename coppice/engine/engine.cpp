#include "coppice/engine/engine.h"

#include <algorithm>
#include <limits>

#include "coppice/cache/memory_plan.h"
#include "coppice/core/error.h"
#include "coppice/engine/engine_state.h"
#include "coppice/models/decoder.h"
#include "coppice/models/load.h"

namespace coppice {
namespace {

// Positions are int32 in the cache.
constexpr int64_t kMaxPositions = std::numeric_limits<int32_t>::max();

CacheConfig sized_cache(const ModelArgs& args, const EngineConfig& config) {
  CacheConfig cache = cache_config(args, config.kv_dtype, config.device);
  cache.max_blocks = config.max_blocks;
  cache.rotary_positions = config.compact_positions;
  cache.resident = config.resident_cache;
  return cache;
}

// A renumbered sequence goes on at half the trained range or below, and a chunk must fit behind.
void check_chunk(int64_t chunk_tokens, const EngineConfig& config, const ModelArgs& args) {
  const int64_t most = config.compact_positions ? args.max_position_embeddings / 2 : kMaxPositions;
  if (chunk_tokens < 1 || chunk_tokens > most) {
    fail_argument("chunk_tokens must be from 1 to {}, got {}", most, chunk_tokens);
  }
}

void check_config(const EngineConfig& config, const ModelArgs& args) {
  const auto at_least_one = [](const char* what, int64_t value) {
    if (value < 1) fail_argument("engine: {} must be 1 or more, got {}", what, value);
  };
  at_least_one("max_blocks", config.max_blocks);
  at_least_one("max_sequences", config.scheduler.max_sequences);
  at_least_one("max_batch_tokens", config.scheduler.max_batch_tokens);
  at_least_one("max_tokens_between", config.scheduler.max_tokens_between);
  check_chunk(config.chunk_tokens, config, args);
  for (const int64_t id : config.end_token_ids) {
    if (id < 0 || id >= args.vocab_size) {
      fail_argument("engine: end token {} is not in the vocabulary of {}", id, args.vocab_size);
    }
  }
  if (config.begin_token_id &&
      (*config.begin_token_id < 0 || *config.begin_token_id >= args.vocab_size)) {
    fail_argument("engine: begin token {} is not in the vocabulary of {}", *config.begin_token_id,
                  args.vocab_size);
  }
}

void check_prompt(const Request& request, int64_t vocab_size) {
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    const int32_t id = request.prompt[i];
    if (id < 0 || id >= vocab_size) {
      fail_argument("token {} of the prompt is {}, expected 0 to {} (the vocabulary)", i, id,
                    vocab_size - 1);
    }
  }
}

}  // namespace

bool same_policy(const EvictionConfig& a, const EvictionConfig& b) {
  return a.policy == b.policy && a.sinks == b.sinks && a.lookahead == b.lookahead &&
         a.scope == b.scope && a.parity_reference == b.parity_reference && a.buffer == b.buffer &&
         a.options == b.options;
}

CacheConfig cache_config(const ModelArgs& args, at::ScalarType kv_dtype, c10::Device device) {
  CacheConfig config;
  config.num_layers = args.num_hidden_layers;
  config.num_kv_heads = args.num_key_value_heads;
  config.head_dim = args.head_dim;
  config.dtype = kv_dtype;
  config.device = device;
  return config;
}

int64_t worst_case_blocks(const CacheConfig& cache, const EvictionConfig& eviction,
                          int64_t chunk_tokens, int64_t total_tokens) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t blocks = kNone;
  if (total_tokens <= kMaxPositions) {  // no row is longer than what was read
    blocks = cache.num_rows() * ((total_tokens + kBlockEntries - 1) / kBlockEntries);
  }
  if (eviction.budget_entries != EvictionConfig::kUnbounded) {
    const int64_t pass = std::max<int64_t>(1, std::min(chunk_tokens, total_tokens));
    if (eviction.budget_entries < kMaxPositions && eviction.buffer < kMaxPositions) {
      const int64_t held = eviction.budget_entries + eviction.buffer;
      if (held < total_tokens || blocks == kNone) {
        blocks = std::min(blocks, plan_memory(cache, held, pass).max_blocks);
      }
    }
  }
  if (blocks == kNone) {
    fail(ErrorCode::kCapacity,
         "a sequence of unbounded length needs a KV budget, got an unbounded one");
  }
  return blocks;
}

Engine::State::State(std::shared_ptr<Model> model_in, const EngineConfig& config_in,
                     TextStreamFactory text_in)
    : model(std::move(model_in)),
      config((check_config(config_in, model->args()), config_in)),
      gate_kind(model->gate_kind()),
      inv_freq(config.compact_positions ? models::make_rope_table(model->args()).inv_freq()
                                        : at::Tensor()),
      cache(sized_cache(model->args(), config)),
      backend(cache),
      text(std::move(text_in)) {}

const Session& Engine::State::idle_session(SessionId id) const {
  const auto found = sessions.find(id);
  if (found == sessions.end()) {
    fail(ErrorCode::kNotFound, "there is no kept session {}; {} are kept", id, sessions.size());
  }
  if (found->second.in_use) {
    fail(ErrorCode::kNotFound, "session {} is in use by a request that waits", id);
  }
  return found->second;
}

SequenceContext Engine::State::make_context(const Request& request) const {
  check_prompt(request, model->args().vocab_size);
  SequenceContext context;
  int64_t read = 0;
  if (request.session) {
    context = idle_session(*request.session).context;
    if (context.cache_id) read = cache.tokens_seen(*context.cache_id);
  } else {
    context.eviction = config.eviction;
  }
  context.tokens.insert(context.tokens.end(), request.prompt.begin(), request.prompt.end());
  if (context.tokens.empty() && config.begin_token_id) {
    context.tokens.push_back(*config.begin_token_id);
  }
  add_images(context.images, request.images, read, context.num_tokens(),
             model->args().embedding_width());
  const int64_t pictures_end = context.images.empty() ? 0 : context.images.back().end();
  if (pictures_end > context.num_tokens() && request.sampling.max_tokens != 0) {
    fail_argument("picture: {} of its tokens are missing at the end of the prompt",
                  pictures_end - context.num_tokens());
  }
  if (context.num_tokens() == read) {
    fail_argument("the prompt is empty, expected at least one token{}",
                  request.session ? " that the session has not read"
                                  : ": this vocabulary has no begin token to start from");
  }
  return context;
}

EvictionPolicy Engine::State::make_policy(const Request& request,
                                          const SequenceContext& context) const {
  EvictionPolicy policy(request.eviction.value_or(context.eviction), cache.config());
  policy.check_gate_kind(gate_kind);
  if (request.session && context.cache_id && !same_policy(policy.config(), context.eviction)) {
    fail_argument("a session keeps its eviction policy ({}); only the budget may change",
                  context.eviction.policy);
  }
  if (request.session && context.cache_id) {
    const int64_t read = cache.tokens_seen(*context.cache_id);
    if (clip_pins(policy.config().pins, read) != clip_pins(context.eviction.pins, read))
      fail_argument(
          "a session keeps the pins of the {} tokens it has read; expected new pins "
          "behind them alone",
          read);
  }
  return policy;
}

// The end of positions, and of the pool where the budget does not bound what is held.
int64_t Engine::State::most_new_tokens(const Request& request, const SequenceContext& context,
                                       const EvictionConfig& eviction, int64_t chunk_tokens) const {
  const int64_t range = model->args().max_position_embeddings;
  const int64_t prompt = context.num_tokens();
  const int64_t limit = config.compact_positions ? kMaxPositions : range;
  const int64_t wanted = request.sampling.max_tokens.value_or(1);
  if (prompt > limit || wanted > limit - prompt) {
    fail(ErrorCode::kCapacity,
         "the prompt has {} tokens and {} are to be generated; the model has positions for {} in "
         "all{}",
         prompt, wanted, limit,
         config.compact_positions ? "" : " (--positions compact goes beyond)");
  }
  if (request.sampling.max_tokens) return wanted;
  // The most tokens read that fit the pool; the last token drawn is not read.
  int64_t low = prompt;  // checked by the caller
  int64_t high = config.compact_positions ? std::min(limit, prompt + range) : limit;
  const auto fits = [&](int64_t total) {
    return worst_case_blocks(cache.config(), eviction, chunk_tokens, total) <= config.max_blocks;
  };
  const int64_t last = high - prompt;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return std::min(last, low - prompt + 1);
}

SequenceLimits Engine::State::make_limits(const Request& request, const SequenceContext& context,
                                          const EvictionPolicy& policy) const {
  SequenceLimits limits;
  limits.vocab_size = model->args().vocab_size;
  limits.chunk_tokens = request.chunk_tokens.value_or(config.chunk_tokens);
  check_chunk(limits.chunk_tokens, config, model->args());
  const EvictionConfig& eviction = policy.config();
  limits.max_new_tokens = most_new_tokens(request, context, eviction, limits.chunk_tokens);
  const int64_t total = context.num_tokens() + std::max<int64_t>(0, limits.max_new_tokens - 1);
  limits.worst_blocks = worst_case_blocks(cache.config(), eviction, limits.chunk_tokens, total);
  if (limits.worst_blocks > config.max_blocks) {
    fail(ErrorCode::kCapacity,
         "{} tokens of prompt and {} to generate may need {} bytes of KV cache; the bound is {}",
         context.num_tokens(), limits.max_new_tokens,
         limits.worst_blocks * cache.config().block_bytes(), cache.bytes_bound());
  }
  if (!request.sampling.ignore_eos) limits.end_token_ids = config.end_token_ids;
  limits.end_token_ids.insert(limits.end_token_ids.end(), request.sampling.stop_token_ids.begin(),
                              request.sampling.stop_token_ids.end());
  return limits;
}

Engine::Engine(std::shared_ptr<Model> model, const EngineConfig& config, TextStreamFactory text) {
  if (!model) fail_argument("engine: a model is needed, got none");
  state_ = std::make_unique<State>(std::move(model), config, std::move(text));
}

Engine::~Engine() = default;

RequestId Engine::submit(const Request& request) {
  State& state = *state_;
  validate(request.sampling, state.model->args().vocab_size);
  if (!request.sampling.stop.empty() && !state.text) {
    fail_argument("stop strings need a tokenizer, and this engine has none");
  }
  SequenceContext context = state.make_context(request);
  EvictionPolicy policy = state.make_policy(request, context);
  const SequenceLimits limits = state.make_limits(request, context, policy);
  context.eviction = policy.config();
  const int64_t reused = context.cache_id ? state.cache.tokens_seen(*context.cache_id) : 0;
  auto sequence = std::make_unique<Sequence>(
      state.next_request, request, std::move(context), reused, std::move(policy), limits,
      state.text ? state.text() : std::unique_ptr<TextStream>());
  state.waiting.push_back(std::move(sequence));
  if (request.session) state.sessions.at(*request.session).in_use = true;
  return state.next_request++;
}

bool Engine::has_work() const { return !state_->waiting.empty() || !state_->running.empty(); }

bool Engine::cancel(RequestId id) {
  State& state = *state_;
  for (auto it = state.waiting.begin(); it != state.waiting.end(); ++it) {
    if ((*it)->id() != id) continue;
    if ((*it)->session()) state.sessions.at(*(*it)->session()).in_use = false;
    state.waiting.erase(it);
    return true;
  }
  const Sequence* sequence = state.find_running(id);
  if (sequence == nullptr) return false;
  state.leave_chunk(*sequence);
  state.cache.remove_sequence(*sequence->context().cache_id);
  state.remove(*sequence);
  return true;
}

std::optional<SessionId> Engine::cancel_and_keep(RequestId id) {
  State& state = *state_;
  Sequence* sequence = state.find_running(id);
  if (sequence != nullptr) {
    state.leave_chunk(*sequence);
    const SessionId session = state.store_session(*sequence);
    state.remove(*sequence);
    return session;
  }
  for (const auto& waiting : state.waiting) {
    if (waiting->id() != id) continue;
    const std::optional<SessionId> session = waiting->session();
    cancel(id);
    return session;
  }
  return std::nullopt;
}

RequestOutput Engine::run(const Request& request,
                          const std::function<bool(const RequestOutput&)>& on_output) {
  if (has_work()) fail_argument("run() works alone: other requests are in the engine");
  const RequestId id = submit(request);
  RequestOutput joined;
  joined.id = id;
  while (has_work()) {
    for (RequestOutput& output : step()) {
      if (output.error) throw Error(output.error->code, output.error->message);
      joined.text += output.text;
      joined.tokens.insert(joined.tokens.end(), output.tokens.begin(), output.tokens.end());
      joined.prompt_scores.insert(joined.prompt_scores.end(), output.prompt_scores.begin(),
                                  output.prompt_scores.end());
      joined.finish_reason = output.finish_reason;
      joined.session = output.session;
      joined.usage = output.usage;
      const bool go_on = !on_output || on_output(output);
      if (go_on || output.finished()) continue;
      joined.finish_reason = FinishReason::kStop;
      if (request.keep_session) {
        joined.session = cancel_and_keep(id);
      } else {
        cancel(id);
      }
    }
  }
  return joined;
}

void Engine::drop_session(SessionId id) {
  const Session& session = state_->idle_session(id);
  if (session.context.cache_id) state_->cache.remove_sequence(*session.context.cache_id);
  state_->sessions.erase(id);
}

SessionId Engine::fork_session(SessionId id) {
  State& state = *state_;
  const Session& session = state.idle_session(id);
  Session copy{session.context, false};
  if (copy.context.cache_id) {
    const int64_t needed = blocks_of(state.cache, *copy.context.cache_id);
    int64_t spoken_for = state.idle_blocks();
    for (const auto& sequence : state.running) spoken_for += sequence->limits().worst_blocks;
    if (needed > state.config.max_blocks - spoken_for) {
      fail(ErrorCode::kCapacity,
           "forking session {} needs {} blocks of the KV cache; {} of {} are not spoken for", id,
           needed, state.config.max_blocks - spoken_for, state.config.max_blocks);
    }
    copy.context.cache_id = state.cache.fork(*copy.context.cache_id);
  }
  const SessionId made = state.next_session++;
  state.sessions.emplace(made, std::move(copy));
  return made;
}

const std::vector<int32_t>& Engine::session_tokens(SessionId id) const {
  return state_->idle_session(id).context.tokens;
}

std::vector<SessionId> Engine::sessions() const {
  std::vector<SessionId> ids;
  for (const auto& [id, session] : state_->sessions) {
    if (!session.in_use) ids.push_back(id);
  }
  return ids;
}

const EngineConfig& Engine::config() const { return state_->config; }
const KvCache& Engine::cache() const { return state_->cache; }
const Model& Engine::model() const { return *state_->model; }

std::optional<SequenceId> Engine::sequence_of(RequestId id) const {
  const Sequence* sequence = state_->find_running(id);
  return sequence == nullptr ? std::nullopt : sequence->context().cache_id;
}

std::optional<SequenceId> Engine::sequence_of_session(SessionId id) const {
  return state_->idle_session(id).context.cache_id;
}

}  // namespace coppice
