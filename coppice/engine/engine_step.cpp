// One step of the engine: plan, reserve, run, draw, commit, evict - or roll back.
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "coppice/attention/compact_positions.h"
#include "coppice/core/error.h"
#include "coppice/core/log.h"
#include "coppice/engine/engine_state.h"
#include "coppice/engine/token_positions.h"

namespace coppice {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The exception in flight as a request's error. REQUIRES: called from a catch block.
RequestError current_error() {
  try {
    throw;
  } catch (const Error& e) {
    return {e.code(), e.what(), std::current_exception()};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kCapacity, "the machine has no memory left for this step",
            std::current_exception()};
  } catch (const std::exception& e) {
    const std::string what = e.what();  // libtorch adds a stack trace after the first line
    return {ErrorCode::kInternal, what.substr(0, what.find('\n')), std::current_exception()};
  }
}

SchedulerSequence describe(const Sequence& sequence, const KvCache& cache) {
  const auto& cache_id = sequence.context().cache_id;
  return {.id = sequence.id(),
          .pending_tokens = sequence.pending_tokens(cache),
          .chunk_tokens = sequence.limits().chunk_tokens,
          .decoding = sequence.decoding(),
          .begun = cache_id && cache.tokens_in_pass(*cache_id) > 0,
          .worst_blocks = sequence.limits().worst_blocks,
          .held_blocks = cache_id ? blocks_of(cache, *cache_id) : 0};
}

}  // namespace

StepPart step_part(Sequence& sequence, int64_t tokens) {
  return {.sequence = &sequence,
          .tokens = tokens,
          .decoding = sequence.decoding(),
          .logits = {},
          .prompt_scores = {},
          .output = {}};
}

PassPart pass_part(const KvCache& cache, const StepPart& part) {
  Sequence& sequence = *part.sequence;
  return {*sequence.context().cache_id, sequence.next_tokens(cache, part.tokens),
          &sequence.policy(), sequence.context().images};
}

int64_t Engine::State::idle_blocks() const {
  int64_t blocks = 0;
  for (const auto& [id, session] : sessions) {
    if (session.context.cache_id) blocks += blocks_of(cache, *session.context.cache_id);
  }
  return blocks;
}

StepPlan Engine::State::plan() const {
  std::vector<SchedulerSequence> run, wait;
  for (const auto& sequence : running) run.push_back(describe(*sequence, cache));
  for (const auto& sequence : waiting) {
    if (static_cast<int64_t>(wait.size()) >= config.scheduler.max_sequences) break;
    wait.push_back(describe(*sequence, cache));
  }
  return plan_step(config.scheduler, config.max_blocks, idle_blocks(), run, wait, reading_turn);
}

// -> parts of those that failed at once.
std::vector<StepPart> Engine::State::admit(const std::vector<int64_t>& ids) {
  std::vector<StepPart> failed;
  for (const int64_t id : ids) {
    COPPICE_CHECK(!waiting.empty() && waiting.front()->id() == id,
                  "request {} was admitted out of order", id);
    std::unique_ptr<Sequence> sequence = std::move(waiting.front());
    waiting.pop_front();
    if (sequence->session()) sessions.erase(*sequence->session());  // the context moves on
    SequenceContext& context = sequence->context();
    const bool fresh = !context.cache_id;
    if (fresh) context.cache_id = cache.add_sequence();
    const auto later = [](RequestId arrival, const std::unique_ptr<Sequence>& other) {
      return arrival < other->arrival();
    };
    Sequence& admitted = **running.insert(
        std::upper_bound(running.begin(), running.end(), sequence->arrival(), later),
        std::move(sequence));
    if (fresh) continue;
    try {  // down to this request's budget, which may be less than the last one's
      context.evicted_entries += admitted.policy().evict(cache, *context.cache_id);
    } catch (...) {
      failed.push_back(step_part(admitted, 0));
      fail_part(failed.back());
    }
  }
  return failed;
}

std::vector<RequestOutput> Engine::State::refuse_first_waiting() {
  const Sequence& sequence = *waiting.front();
  RequestOutput output;
  output.id = sequence.id();
  output.finish_reason = FinishReason::kError;
  output.error = RequestError{
      ErrorCode::kCapacity,
      fmt::format("the request may need {} blocks of the KV cache, but kept sessions hold {} of {}",
                  sequence.limits().worst_blocks, idle_blocks(), config.max_blocks)};
  output.usage = sequence.usage(cache);
  if (sequence.session()) sessions.at(*sequence.session()).in_use = false;
  waiting.pop_front();
  return {std::move(output)};
}

// The model over all parts at once, and what is read off it. All or nothing.
void Engine::State::forward(std::span<StepPart> parts) {
  std::vector<PassPart> pass;
  for (const StepPart& part : parts) pass.push_back(pass_part(cache, part));
  read_scores(parts, forward_pass(*model, backend, cache, pass));
}

// Scores where a token is wanted, and of prompts where they are. All or nothing.
void Engine::State::read_scores(std::span<StepPart> parts, const at::Tensor& hidden) {
  try {
    score_prompts(parts, hidden);
    std::vector<int64_t> rows;  // of `hidden`, where scores are wanted
    int64_t end = 0;
    for (const StepPart& part : parts) {
      end += part.tokens;
      if (part.sequence->pending_tokens(cache) == part.tokens && part.sequence->wants_token()) {
        rows.push_back(end - 1);
      }
    }
    if (rows.empty()) return;
    const at::Tensor index = at::tensor(rows).to(hidden.device());
    const at::Tensor logits =
        model->logits(hidden.index_select(0, index)).to(at::kCPU, at::kFloat).contiguous();
    int64_t next = 0;
    for (StepPart& part : parts) {
      if (part.sequence->pending_tokens(cache) == part.tokens && part.sequence->wants_token()) {
        part.logits = logits[next++];
      }
    }
  } catch (...) {
    for (const StepPart& part : parts) cache.rollback(*part.sequence->context().cache_id);
    throw;
  }
}

// Of the tokens that follow each token read; some rows of scores at a time, for a vocabulary is
// large.
void Engine::State::score_prompts(std::span<StepPart> parts, const at::Tensor& hidden) {
  constexpr int64_t kRowsAtOnce = 32;
  int64_t begin = 0;
  for (StepPart& part : parts) {
    const std::span<const int32_t> ids = part.sequence->scored_tokens(cache, part.tokens);
    const auto count = static_cast<int64_t>(ids.size());
    part.prompt_scores.clear();
    for (int64_t first = 0; first < count; first += kRowsAtOnce) {
      const int64_t rows = std::min(kRowsAtOnce, count - first);
      const at::Tensor logits = model->logits(hidden.narrow(0, begin + first, rows))
                                    .to(at::kCPU, at::kFloat)
                                    .contiguous();
      for (int64_t r = 0; r < rows; ++r) {
        SampledToken token{.id = ids[static_cast<std::size_t>(first + r)], .top = {}};
        fill_logprobs({logits[r].const_data_ptr<float>(), static_cast<std::size_t>(logits.size(1))},
                      part.sequence->top_logprobs(), token);
        part.prompt_scores.push_back(std::move(token));
      }
    }
    begin += part.tokens;
  }
}

// Commit, evict, draw: what belongs to one sequence alone.
void Engine::State::complete(StepPart& part) {
  Sequence& sequence = *part.sequence;
  sequence.note_peak(cache);
  sequence.take_prompt_scores(std::move(part.prompt_scores), cache, part.output);
  const bool read_all = sequence.pending_tokens(cache) == part.tokens;
  const PassPart pass = pass_part(cache, part);
  const Clock::time_point begin = Clock::now();
  const int64_t dropped = commit_pass(cache, pass);
  sequence.note_pass(part.tokens, dropped, seconds_since(begin));
  sequence.release_images(cache);
  if (part.logits.defined()) {
    sequence.accept(
        {part.logits.const_data_ptr<float>(), static_cast<std::size_t>(part.logits.numel())},
        part.output);
  } else if (read_all) {
    sequence.finish_without_tokens(part.output);
  }
}

// REQUIRES: called from a catch block.
void Engine::State::fail_part(StepPart& part) {
  part.output.finish_reason = FinishReason::kError;
  part.output.error = current_error();
  log_warning("request {} failed: {}", part.sequence->id(), part.output.error->message);
}

// Renumbers the keys of sequences that would pass the trained range.
void Engine::State::make_positions(std::span<StepPart> parts) {
  if (!config.compact_positions) return;
  const int64_t range = model->args().max_position_embeddings;
  for (const StepPart& part : parts) {
    const SequenceId id = *part.sequence->context().cache_id;
    const std::vector<ImageSpan>& images = part.sequence->context().images;
    const int64_t reach =
        token_positions(images, cache.tokens_seen(id), part.tokens, cache.next_rotary(id)).reach;
    if (reach <= range) continue;
    std::vector<RotaryGroup> groups;
    for (const ImageSpan& span : images)
      if (span.has_grid()) groups.push_back({span.begin, span.end(), span.extent()});
    compact_positions(cache, id, inv_freq, range, groups);
  }
}

void Engine::State::run(std::span<StepPart> parts) {
  const auto complete_all = [this](std::span<StepPart> of) {
    for (StepPart& part : of) {
      try {
        complete(part);
      } catch (...) {
        fail_part(part);
      }
    }
  };
  try {
    make_positions(parts);
    forward(parts);
  } catch (...) {
    if (parts.size() == 1) return fail_part(parts[0]);
    // Whose fault it was shows when each runs alone.
    for (std::size_t i = 0; i < parts.size(); ++i) run(parts.subspan(i, 1));
    return;
  }
  complete_all(parts);
}

SessionId Engine::State::store_session(Sequence& sequence) {
  const SessionId id = sequence.session() ? *sequence.session() : next_session++;
  sessions[id] = Session{std::move(sequence.context()), false};
  return id;
}

void Engine::State::remove(const Sequence& sequence) {
  std::erase_if(running, [&](const auto& other) { return other.get() == &sequence; });
}

// Closes a part: its numbers, and its sequence's end if it has one.
void Engine::State::settle(StepPart& part, double seconds) {
  Sequence& sequence = *part.sequence;
  sequence.note_step(seconds, part.decoding);
  part.output.id = sequence.id();
  part.output.usage = sequence.usage(cache, part.output.finished());
  if (!part.output.finished()) return;
  if (part.output.error)
    cache.rollback(*sequence.context().cache_id);  // of a part that failed before its commit
  if (part.output.error ? sequence.keep_failed() : sequence.keep_session()) {
    part.output.session = store_session(sequence);
  } else {
    cache.remove_sequence(*sequence.context().cache_id);
  }
  remove(sequence);
}

Sequence* Engine::State::find_running(RequestId id) const {
  for (const auto& sequence : running) {
    if (sequence->id() == id) return sequence.get();
  }
  return nullptr;
}

std::vector<RequestOutput> Engine::step() {
  const c10::InferenceMode inference;
  const Clock::time_point begin = Clock::now();
  State& state = *state_;
  const StepPlan plan = state.plan();
  if (plan.stuck) return state.refuse_first_waiting();
  std::vector<RequestOutput> outputs;
  for (StepPart& part : state.admit(plan.admitted)) {
    state.settle(part, 0.0);
    outputs.push_back(std::move(part.output));
  }
  std::vector<StepPart> parts;
  for (const StepItem& item : plan.items) {
    if (Sequence* sequence = state.find_running(item.id))
      parts.push_back(step_part(*sequence, item.tokens));
  }
  std::sort(parts.begin(), parts.end(), [](const StepPart& a, const StepPart& b) {
    return a.sequence->id() < b.sequence->id();
  });
  if (!parts.empty()) state.run(parts);
  if (plan.slice && state.find_running(plan.slice->id)) {
    if (std::optional<StepPart> part = state.run_slice(*plan.slice)) parts.push_back(*part);
  }
  const double seconds = seconds_since(begin);
  const auto read = [](const StepPart& part) { return !part.decoding; };
  if (std::ranges::any_of(parts, read)) ++state.reading_turn;
  if (state.open_chunk) state.find_running(plan.slice->id)->note_step(seconds, false);
  for (StepPart& part : parts) {
    state.settle(part, seconds);
    outputs.push_back(std::move(part.output));
  }
  return outputs;
}

}  // namespace coppice
