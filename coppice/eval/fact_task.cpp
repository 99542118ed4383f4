#include "coppice/eval/fact_task.h"

#include <algorithm>
#include <set>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/recall_summary.h"
#include "coppice/models/model.h"

namespace coppice {
namespace {

constexpr int64_t kQuestionTokens = 256;  // room for the question and the template's words
constexpr int64_t kLeastLength = 64;

// Room for what follows a text, whichever way it is asked.
int64_t asked_tokens(const FactOptions& options) {
  int64_t most = 0;
  for (const Asking asking : options.asking) {
    const int64_t one = kQuestionTokens + options.answer_tokens;
    most = std::max(most, asking == Asking::kInTurn ? options.questions * one
                          : asking == Asking::kSeen ? one + kQuestionTokens
                                                    : one);
  }
  return most;
}

FactOptions checked(std::string_view name, FactOptions options, int64_t range) {
  const auto kinds = static_cast<int64_t>(needle_kinds().size());
  if (options.trials < 1 || options.questions < 1 || options.questions > kinds ||
      options.answer_tokens < 1)
    fail_argument(
        "{}: expected at least 1 trial, 1 to {} questions a text and 1 token of answer, got "
        "{}, {} and {}",
        name, kinds, options.trials, options.questions, options.answer_tokens);
  if (options.asking.empty()) fail_argument("{}: no way to ask is given", name);
  if (options.lengths.empty()) fail_argument("{}: no length is given", name);
  std::ranges::sort(options.lengths);
  const auto repeated = std::ranges::unique(options.lengths);
  options.lengths.erase(repeated.begin(), repeated.end());
  if (options.lengths.front() < kLeastLength)
    fail_argument("{}: a text must have at least {} tokens, got {}", name, kLeastLength,
                  options.lengths.front());
  const int64_t most = options.lengths.back() + asked_tokens(options);
  if (most > range)
    fail(ErrorCode::kCapacity,
         "{}: a text of {} tokens with {} for question and answer passes the model's {} positions",
         name, options.lengths.back(), most - options.lengths.back(), range);
  return options;
}

}  // namespace

FactTask::FactTask(std::string_view name, TextModel model, const std::vector<std::string>& passages,
                   const FactOptions& options)
    : model_(std::move(model)),
      options_(checked(name, options, model_.base.model->args().max_position_embeddings)),
      haystack_(passages),
      name_(name) {}

Json FactTask::config() const {
  return {{"questions", options_.questions}, {"answer_tokens", options_.answer_tokens}};
}

int64_t FactTask::items() const {
  const int64_t texts = (options_.trials + options_.questions - 1) / options_.questions;
  return texts * static_cast<int64_t>(options_.lengths.size() * options_.asking.size());
}

// All lengths and ways in turn, so that a run that is ended early has something of each.
FactTask::Item FactTask::at(int64_t item) const {
  const auto lengths = static_cast<int64_t>(options_.lengths.size());
  const auto ways = static_cast<int64_t>(options_.asking.size());
  return {.length = options_.lengths[static_cast<std::size_t>(item / ways % lengths)],
          .number = item / ways / lengths,
          .asking = options_.asking[static_cast<std::size_t>(item % ways)]};
}

std::vector<Json> FactTask::keys(int64_t item) const {
  const Item which = at(item);
  std::vector<Json> keys;
  for (int64_t q = 0; q < options_.questions; ++q)
    keys.push_back(Json{{"length", which.length},
                        {"asked", asking_name(which.asking)},
                        {"trial", which.number * options_.questions + q}});
  return keys;
}

int64_t FactTask::tokens(int64_t item) const { return at(item).length + asked_tokens(options_); }

void FactTask::fit(uint64_t salt, int64_t length, int64_t number,
                   const std::function<int64_t(const Draft&)>& tokens_of) {
  Rng rng(mix_seed(options_.seed, salt, static_cast<uint64_t>(number)));
  Draft draft{.number = number,
              .first = static_cast<int64_t>(rng.below(static_cast<uint64_t>(haystack_.size()))),
              .needles = {}};
  std::set<std::string> taken;
  for (int64_t q = 0; q < options_.questions; ++q)
    draft.needles.push_back(draw_needle(number * options_.questions + q, rng, taken));
  const auto size_of = [&](int64_t i) {
    return haystack_.tokens(draft.first + i, *model_.tokenizer);
  };
  for (int64_t tokens = 0; tokens < length; tokens += size_of(draft.count++))
    if (draft.count == haystack_.size())
      fail_argument("{}: a text of {} tokens is asked for, the files have about {}", name_, length,
                    tokens);
  for (;;) {
    int64_t excess = tokens_of(draft) - length;
    if (excess <= 0) return;
    for (; excess > 0 && draft.count > 0; --draft.count) excess -= size_of(draft.count - 1);
    if (draft.count == 0)
      fail_argument("{}: {} tokens have no room for the questions' facts and real text", name_,
                    length);
  }
}

void FactTask::check_question(int64_t tokens) const {
  if (tokens > kQuestionTokens)
    fail_argument("{}: a question has {} tokens, at most {} are expected", name_, tokens,
                  kQuestionTokens);
}

AskingOptions FactTask::asking_options(int64_t item, const EvictionConfig& eviction) const {
  return {.asking = at(item).asking,
          .eviction = eviction,
          .answer_tokens = options_.answer_tokens,
          .total_tokens = tokens(item)};
}

Json FactTask::row(const Needle& needle, double depth, int64_t tokens, const Answer& answer) {
  Json row = {{"kind", needle.kind},
              {"depth", depth},
              {"tokens", tokens},
              {"prompt_tokens", answer.prompt_tokens},
              {"question", needle.question},
              {"expected", needle.answers.front()},
              {"answer", answer.text},
              {"correct", contains_answer(answer.text, needle.answers)}};
  row.update(cache_fields(answer.kv));
  return row;
}

Json FactTask::summarise(const RowTable& rows, const std::vector<EvictionConfig>& settings) const {
  std::vector<Json> all;
  for (int64_t item = 0; item < items(); ++item)
    for (const Json& key : keys(item)) all.push_back(key);
  return recall_summary(rows, settings, all,
                        {.questions = options_.questions, .seed = options_.seed});
}

std::string FactTask::table(const Json& summary) const { return recall_table(summary); }

}  // namespace coppice
