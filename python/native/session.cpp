#include "python/native/session.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "coppice/core/error.h"

namespace coppice::python {
namespace {

// Places of a row by rising position.
std::vector<int64_t> by_position(std::span<const int32_t> positions) {
  std::vector<int64_t> order(positions.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return positions[static_cast<std::size_t>(a)] < positions[static_cast<std::size_t>(b)];
  });
  return order;
}

std::vector<int32_t> row_positions(const KvCache& cache, const BlockTable& row) {
  const auto* pool = cache.positions().const_data_ptr<int32_t>();
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < row.length; ++i) positions.push_back(pool[row.slot(i)]);
  return positions;
}

std::shared_ptr<Engine> make_engine(const Runtime& runtime, const SessionOptions& options) {
  if (options.sequences < 1) fail_argument("forks must be at least 1, got {}", options.sequences);
  if (options.tokens && *options.tokens < 1)
    fail_argument("length must be at least 1 token, got {}", *options.tokens);
  const int64_t range = runtime.model()->args().max_position_embeddings;
  const int64_t longest =
      options.tokens ? *options.tokens : runtime.longest_tokens(options.cache, 0, std::nullopt);
  return runtime.make_engine(options.cache, std::min(longest, options.tokens.value_or(range)),
                             longest, options.sequences);
}

}  // namespace

RequestId EngineHost::submit(const Request& request) {
  sweep();
  const RequestId id = engine_->submit(request);
  outputs_[id];
  return id;
}

RequestOutput EngineHost::next(RequestId id) {
  sweep();
  std::deque<RequestOutput>& mine = outputs_.at(id);
  while (mine.empty()) {
    COPPICE_CHECK(engine_->has_work(), "request {} has no output and nothing runs", id);
    for (RequestOutput& output : engine_->step()) {
      const auto waiting = outputs_.find(output.id);
      if (waiting != outputs_.end()) waiting->second.push_back(std::move(output));
    }
  }
  RequestOutput output = std::move(mine.front());
  mine.pop_front();
  if (output.finished()) outputs_.erase(id);
  return output;
}

std::optional<SessionId> EngineHost::cancel_and_keep(RequestId id) {
  std::optional<SessionId> session;
  if (const auto found = outputs_.find(id); found != outputs_.end()) {
    // It may have ended in a step for somebody else.
    if (!found->second.empty() && found->second.back().finished())
      session = found->second.back().session;
    else
      session = engine_->cancel_and_keep(id);
    outputs_.erase(found);
  }
  return session;
}

void EngineHost::drop_later(std::optional<RequestId> request, std::optional<SessionId> session) {
  {
    const std::lock_guard lock(ended_mutex_);
    ended_.emplace_back(request, session);
  }
  if (!model_->runs_here()) model_->run([this] { sweep(); });
}

void EngineHost::sweep() {
  decltype(ended_) ended;
  {
    const std::lock_guard lock(ended_mutex_);
    ended.swap(ended_);
  }
  for (auto& [request, session] : ended) {
    if (request) session = cancel_and_keep(*request);
    if (session) engine_->drop_session(*session);
  }
}

Session::Session(std::shared_ptr<LoadedModel> model, const SessionOptions& options) {
  const Runtime& runtime = model->runtime();
  std::shared_ptr<Engine> engine = make_engine(runtime, options);
  EvictionPolicy(engine->config().eviction, engine->cache().config())
      .check_gate_kind(runtime.gate_kind());
  if (options.chat) chat_ = std::make_unique<Conversation>(runtime, *options.chat, engine);
  host_ = std::make_shared<EngineHost>(std::move(model), std::move(engine));
}

Session::~Session() {
  if (host_.use_count() == 1) return;  // the engine ends with it
  try {
    host_->drop_later(request_, request_ ? std::nullopt : session_);
  } catch (...) {  // the engine drops it with all else when it ends
  }
}

void Session::begin(const Request& request) {
  Request own = request;
  own.keep_session = true;
  own.keep_failed = true;
  std::vector<int32_t> tokens;
  if (own.session) tokens = host_->engine()->session_tokens(*own.session);
  tokens.insert(tokens.end(), own.prompt.begin(), own.prompt.end());
  request_ = host_->submit(own);
  tokens_ = std::move(tokens);
  session_.reset();
  answer_ = RequestOutput();
}

void Session::start(std::vector<int32_t> ids, const SamplingParams& sampling, bool score_prompt,
                    const std::vector<std::string>& images) {
  host_->model().run([&] {
    stop_inside();
    Request request;
    const Runtime& runtime = host_->model().runtime();
    std::vector<ImageEncoder::Encoded> pictures;
    for (const std::string& image : images) pictures.push_back(runtime.encode_image(image));
    const int64_t first =
        session_ ? static_cast<int64_t>(host_->engine()->session_tokens(*session_).size()) : 0;
    runtime.set_prompt(request, ids, pictures, first);
    request.sampling = sampling;
    request.score_prompt = score_prompt;
    request.session = session_;
    begin(request);
  });
}

void Session::start_turn(const std::string& user, const SamplingParams& sampling,
                         const std::vector<std::string>& images) {
  COPPICE_CHECK(chat_ != nullptr, "a turn of no chat");
  host_->model().run([&] {
    stop_inside();
    Conversation::Turn turn = chat_->begin(user, images);
    turn.request.sampling = sampling;
    if (!turn.request.session) forget_session();
    begin(turn.request);
    turn_ = std::move(turn);
  });
}

// Of a chat: what a turn that failed or was stopped has left.
void Session::forget_session() {
  const std::vector<SessionId> kept = host_->engine()->sessions();
  if (session_ && std::find(kept.begin(), kept.end(), *session_) != kept.end())
    host_->engine()->drop_session(*session_);
  session_.reset();
}

std::optional<RequestOutput> Session::next() {
  if (!request_) return std::nullopt;
  RequestOutput output = host_->model().run([&] {
    RequestOutput next = host_->next(*request_);
    answer_.text += next.text;
    answer_.tokens.insert(answer_.tokens.end(), next.tokens.begin(), next.tokens.end());
    answer_.finish_reason = next.finish_reason;
    answer_.session = next.session;
    if (next.finished()) finish(next);
    return next;
  });
  if (!output.error) return output;
  if (output.error->cause) std::rethrow_exception(output.error->cause);
  throw Error(output.error->code, output.error->message);
}

void Session::finish(const RequestOutput& output) {
  request_.reset();
  session_ = output.session;
  if (!turn_) return;
  if (output.error)
    chat_->reread();
  else
    chat_->end(std::move(*turn_), answer_);
  turn_.reset();
}

void Session::stop() {
  host_->model().run([this] { stop_inside(); });
}

void Session::stop_inside() {
  if (!request_) return;
  session_ = host_->cancel_and_keep(*request_);
  request_.reset();
  if (!turn_) return;
  // What was drawn last may not be text yet: the next turn reads the chat again.
  answer_.session.reset();
  chat_->end(std::move(*turn_), answer_);
  turn_.reset();
}

std::shared_ptr<Session> Session::fork() {
  return host_->model().run([this] {
    if (chat_) fail_argument("a chat cannot be forked; a session of text can");
    if (request_) fail_argument("a request is running; finish or stop it before a fork");
    if (!session_) fail_argument("there is nothing to fork: the session has read no token");
    return std::shared_ptr<Session>(new Session(host_, host_->engine()->fork_session(*session_)));
  });
}

std::vector<int32_t> Session::tokens() {
  return host_->model().run([this]() -> std::vector<int32_t> {
    if (session_) return host_->engine()->session_tokens(*session_);
    std::vector<int32_t> all;
    if (!request_) return all;
    all = tokens_;
    for (const SampledToken& token : answer_.tokens) all.push_back(token.id);
    return all;
  });
}

// REQUIRES: inside LoadedModel::run.
std::optional<SequenceId> Session::sequence() const {
  const Engine& engine = *host_->engine();
  if (request_) return engine.sequence_of(*request_);
  return session_ ? engine.sequence_of_session(*session_) : std::nullopt;
}

KeptEntries Session::kept() {
  return host_->model().run([this] {
    const KvCache& cache = host_->engine()->cache();
    const EvictionPolicy policy(host_->engine()->config().eviction, cache.config());
    KeptEntries kept;
    kept.layers = cache.config().num_layers;
    kept.kv_heads = cache.config().num_kv_heads;
    kept.cu_entries.push_back(0);
    const std::optional<SequenceId> id = sequence();
    if (id) kept.tokens_seen = cache.tokens_seen(*id);
    for (int64_t row = 0; row < kept.layers * kept.kv_heads; ++row) {
      if (id) {
        const int64_t layer = row / kept.kv_heads, head = row % kept.kv_heads;
        const BlockTable& table = cache.row(*id, layer, head);
        const std::vector<int32_t> positions = row_positions(cache, table);
        kept.bytes += static_cast<int64_t>(table.blocks.size()) * cache.config().block_bytes();
        std::vector<float> scores(positions.size(), std::numeric_limits<float>::quiet_NaN());
        if (policy.bounded()) scores = policy.scores(cache, *id, layer, head);
        for (const int64_t place : by_position(positions)) {
          kept.positions.push_back(positions[static_cast<std::size_t>(place)]);
          kept.scores.push_back(scores[static_cast<std::size_t>(place)]);
        }
      }
      kept.cu_entries.push_back(static_cast<int64_t>(kept.positions.size()));
    }
    return kept;
  });
}

RowEntries Session::row(int64_t layer, int64_t head) {
  return host_->model().run([&] {
    const KvCache& cache = host_->engine()->cache();
    const CacheConfig& sizes = cache.config();
    if (layer < 0 || layer >= sizes.num_layers || head < 0 || head >= sizes.num_kv_heads)
      fail_argument("there is no layer {}, head {}: expected a layer below {} and a head below {}",
                    layer, head, sizes.num_layers, sizes.num_kv_heads);
    const std::optional<SequenceId> id = sequence();
    KvCache::RowContent content;
    if (id) {
      content = cache.read_row(*id, layer, head);
    } else {
      content.k = content.v = at::empty({0, sizes.head_dim}, sizes.dtype);
    }
    const at::Tensor order = at::tensor(by_position(content.positions), at::kLong);
    const auto sorted = [&order](const auto& numbers, at::ScalarType type) {
      return at::tensor(at::ArrayRef(numbers), type).index_select(0, order);
    };
    return RowEntries{sorted(content.positions, at::kInt).to(at::kLong),
                      content.k.index_select(0, order), content.v.index_select(0, order),
                      sorted(content.log_beta, at::kFloat)};
  });
}

EvictionConfig Session::eviction() {
  return host_->model().run([this] {
    return EvictionPolicy(host_->engine()->config().eviction, host_->engine()->cache().config())
        .config();
  });
}

std::string Session::messages() const {
  return chat_ ? chat_->messages().dump(-1, ' ', false, Json::error_handler_t::replace) : "[]";
}

}  // namespace coppice::python
