#include "coppice/server/answer.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "coppice/core/log.h"
#include "coppice/server/api_error.h"

namespace coppice {
namespace {

constexpr std::chrono::milliseconds kPatience{100};
// For logs and counters; nobody is there to read it.
constexpr int kClientGone = 499;

void append(Choice& choice, ReplyParts parts) {
  choice.text += parts.content;
  choice.reasoning += parts.reasoning;
  std::move(parts.calls.begin(), parts.calls.end(), std::back_inserter(choice.calls));
}

std::vector<int32_t> ids_of_tokens(const std::vector<SampledToken>& tokens) {
  std::vector<int32_t> ids;
  for (const SampledToken& token : tokens) ids.push_back(token.id);
  return ids;
}

std::string event(const Json& data) { return "data: " + dump_json(data) + "\n\n"; }

}  // namespace

int64_t unix_time() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch())
      .count();
}

Answer::Answer(const ReplyHead& head, const AnswerOptions& options, const Tokenizer& tokenizer,
               EngineLoop& loop, std::function<bool()> client_gone)
    : head_(head),
      options_(options),
      tokenizer_(tokenizer),
      loop_(loop),
      client_gone_(std::move(client_gone)) {}

Answer::~Answer() {
  if (open_) loop_.cancel(call_);
}

Update Answer::next() {
  while (true) {
    if (std::optional<Update> update = mailbox_->take(kPatience)) {
      if (update->output.error) {
        throw api_error(update->output.error->code, update->output.error->message);
      }
      return *std::move(update);
    }
    if (client_gone_()) throw ApiError(kClientGone, "the client is gone");
  }
}

void Answer::begin(std::vector<LoopRequest> requests, std::vector<std::string> starts) {
  choices_.resize(requests.size());
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].index = static_cast<int64_t>(i);
    choices_[i].all_tokens = options_.scores_prompt;
    parsers_.emplace_back(options_.format);
  }
  starts_ = std::move(starts);
  if (options_.trace) {
    mailbox_->wants_views = true;
    traced_prompt_ = requests.front().request.prompt;
  }
  call_ = loop_.submit(std::move(requests), mailbox_);
  open_ = true;
  next();  // accepted
}

// Appends what an update brought, taken apart. Tokens are kept where log-probabilities are wanted;
// else they are only counted in the usage.
void Answer::join(Choice& choice, Update& update) {
  RequestOutput& output = update.output;
  ReplyParser& parser = parsers_[static_cast<std::size_t>(update.choice)];
  append(choice, parser.push(output.text));
  if (output.finished()) append(choice, parser.finish());
  choice.called = parser.called();
  if (options_.logprobs) {
    choice.tokens.insert(choice.tokens.end(), std::make_move_iterator(output.tokens.begin()),
                         std::make_move_iterator(output.tokens.end()));
    choice.prompt.insert(choice.prompt.end(), std::make_move_iterator(output.prompt_scores.begin()),
                         std::make_move_iterator(output.prompt_scores.end()));
  }
  choice.finish_reason = output.finish_reason;
  choice.usage = output.usage;
}

bool Answer::done() const { return finished_ == choices_.size(); }

// Where budgets may change, that of the choice that ended last in the list is told, and the least
// that any had.
Json Answer::usage() const {
  int64_t least = options_.range.most.budget_entries, last = least;
  for (const Choice& choice : choices_) {
    const KvUsage& kv = choice.usage.kv;
    if (!kv.least_budget_entries) continue;
    least = std::min(least, *kv.least_budget_entries / options_.rows);
    last = *kv.budget_entries / options_.rows;
  }
  int level = kBudgetLevels;
  while (level > 0 && settings_at(options_.range, level).budget_entries > last) --level;
  Json usage = usage_json(choices_, options_.n, settings_at(options_.range, level));
  Json& kv = usage["kv"];
  kv["min_budget"] =
      options_.range.fixed() ? kv["budget"] : Json(options_.range.least.budget_entries);
  kv["least_budget"] = kv["budget"].is_null() ? Json(nullptr) : Json(least);
  kv["keep"] = options_.keep;
  kv["mark"] = options_.mark;
  return usage;
}

Json Answer::wait() {
  try {
    while (!done()) {
      Update update = next();
      Choice& choice = choices_[static_cast<std::size_t>(update.choice)];
      if (update.output.finished()) ++finished_;
      join(choice, update);
    }
  } catch (const ApiError& error) {
    log_fault(error);
    throw;
  }
  open_ = false;
  for (std::size_t i = 0; i < choices_.size(); ++i) choices_[i].text.insert(0, starts_[i]);
  const Json usage_block = usage();
  log_end("answered", {{"usage", usage_block}});
  return answer_json(head_, choices_, options_.logprobs, tokenizer_, usage_block);
}

void Answer::log_end(const char* message, Json fields) const {
  fields["request"] = head_.id;
  fields["seconds"] =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
  log_info_fields(message, fields);
}

void Answer::log_fault(const ApiError& error) const {
  log_end("ended early", {{"reason", error.what()}, {"status", error.status()}});
}

// What an update adds to its choice's stream; nothing while there is only what waits for more.
std::optional<Choice> Answer::take_fresh(Update& update) {
  Choice& choice = choices_[static_cast<std::size_t>(update.choice)];
  const bool ends = update.output.finished();
  if (ends) ++finished_;
  Choice fresh{.index = choice.index,
               .first_call = choice.first_call,
               .prompt = std::exchange(choice.prompt, {}),
               .all_tokens = choice.all_tokens,
               .text_offset = choice.text_offset};
  join(fresh, update);
  choice.usage = fresh.usage;
  if (!ends && fresh.text.empty() && fresh.tokens.empty() && fresh.reasoning.empty() &&
      fresh.calls.empty()) {
    choice.prompt = std::move(fresh.prompt);  // scores until the prompt is read
    return std::nullopt;
  }
  if (!fresh.prompt.empty()) {
    fresh.text.insert(0, starts_[static_cast<std::size_t>(update.choice)]);
  }
  choice.first_call += fresh.calls.size();
  if (options_.logprobs && head_.kind == ApiKind::kCompletion) {
    choice.text_offset = text_end(fresh, tokenizer_);
  }
  return fresh;
}

void Answer::stream(const std::function<bool(std::string_view)>& write) {
  const auto send = [&](Json chunk) {
    if (options_.include_usage && !chunk.contains("usage")) chunk["usage"] = nullptr;
    if (!write(event(chunk))) throw ApiError(kClientGone, "the client is gone");
  };
  std::optional<CacheTrace> trace;
  const auto send_trace = [&](Json data) { send(trace_chunk_json(head_, std::move(data))); };
  try {
    if (options_.trace) {
      trace.emplace(tokenizer_);
      send_trace(trace->first(*options_.trace, options_.range.most,
                              static_cast<int64_t>(traced_prompt_.size())));
      send_trace(trace->tokens(traced_prompt_));
    }
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      Choice first{.index = choices_[i].index, .text = starts_[i]};
      if (head_.kind == ApiKind::kCompletion && first.text.empty()) continue;
      if (options_.scores_prompt) continue;  // goes with its scores
      send(chunk_json(head_, first, true, false, tokenizer_));
    }
    while (!done()) {
      Update update = next();
      if (update.view) {
        if (trace) send_trace(trace->view(*update.view));
        continue;
      }
      if (trace && !update.output.tokens.empty()) {
        send_trace(trace->tokens(ids_of_tokens(update.output.tokens)));
      }
      if (const std::optional<Choice> fresh = take_fresh(update))
        send(chunk_json(head_, *fresh, false, options_.logprobs, tokenizer_));
    }
    open_ = false;
    const Json usage_block = usage();
    log_end("answered", {{"usage", usage_block}});
    if (options_.include_usage) send(usage_chunk_json(head_, usage_block));
    write("data: [DONE]\n\n");
  } catch (const ApiError& error) {
    log_fault(error);
    if (error.status() != kClientGone) write(event(error.to_json()));
  }
}

}  // namespace coppice
