#include "coppice/eval/recall.h"

#include <algorithm>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/recall_summary.h"
#include "coppice/models/model.h"

namespace coppice {
namespace {

constexpr int64_t kDepths = 10;
constexpr int64_t kQuestionTokens = 256;  // room for the question and the template's words
constexpr int64_t kLeastLength = 64;

// In one of the ten depths; all kinds of one round differ, and so do the rounds of one kind.
double depth_of(int64_t trial) {
  const auto kinds = static_cast<int64_t>(needle_kinds().size());
  const int64_t slot = (3 * (trial / kinds) + 7 * (trial % kinds)) % kDepths;
  return (static_cast<double>(slot) + 0.5) / static_cast<double>(kDepths);
}

// Evenly over the rest of the passage, counted round its end.
double shifted(double depth, int64_t step, int64_t steps) {
  const double moved = depth + static_cast<double>(step) / static_cast<double>(steps);
  return moved < 1.0 ? moved : moved - 1.0;
}

// Room for what follows a text, whichever way it is asked.
int64_t asked_tokens(const RecallOptions& options) {
  int64_t most = 0;
  for (const Asking asking : options.asking) {
    const int64_t one = kQuestionTokens + options.answer_tokens;
    most = std::max(most, asking == Asking::kInTurn ? options.questions * one
                          : asking == Asking::kSeen ? one + kQuestionTokens
                                                    : one);
  }
  return most;
}

RecallOptions checked(RecallOptions options, int64_t range) {
  const auto kinds = static_cast<int64_t>(needle_kinds().size());
  if (options.trials < 1 || options.questions < 1 || options.questions > kinds ||
      options.answer_tokens < 1)
    fail_argument(
        "recall: expected at least 1 trial, 1 to {} questions a text and 1 token of answer, got "
        "{}, {} and {}",
        kinds, options.trials, options.questions, options.answer_tokens);
  if (options.asking.empty()) fail_argument("recall: no way to ask is given");
  if (options.lengths.empty()) fail_argument("recall: no length is given");
  std::ranges::sort(options.lengths);
  const auto repeated = std::ranges::unique(options.lengths);
  options.lengths.erase(repeated.begin(), repeated.end());
  if (options.lengths.front() < kLeastLength)
    fail_argument("recall: a text must have at least {} tokens, got {}", kLeastLength,
                  options.lengths.front());
  const int64_t most = options.lengths.back() + asked_tokens(options);
  if (most > range)
    fail(ErrorCode::kCapacity,
         "recall: a text of {} tokens with {} for question and answer passes the model's {} "
         "positions",
         options.lengths.back(), most - options.lengths.back(), range);
  return options;
}

}  // namespace

RecallTask::RecallTask(TextModel model, const std::vector<std::string>& passages,
                       const RecallOptions& options)
    : model_(std::move(model)),
      options_(checked(options, model_.base.model->args().max_position_embeddings)),
      haystack_(passages) {
  make_text(options_.lengths.back(), 0);  // what does not fit is said now
}

Json RecallTask::config() const {
  return {{"questions", options_.questions}, {"answer_tokens", options_.answer_tokens}};
}

int64_t RecallTask::items() const {
  const int64_t texts = (options_.trials + options_.questions - 1) / options_.questions;
  return texts * static_cast<int64_t>(options_.lengths.size() * options_.asking.size());
}

// All lengths and ways in turn, so that a run that is ended early has something of each.
RecallTask::Item RecallTask::at(int64_t item) const {
  const auto lengths = static_cast<int64_t>(options_.lengths.size());
  const auto ways = static_cast<int64_t>(options_.asking.size());
  return {.length = options_.lengths[static_cast<std::size_t>(item / ways % lengths)],
          .number = item / ways / lengths,
          .asking = options_.asking[static_cast<std::size_t>(item % ways)]};
}

std::vector<Json> RecallTask::keys(int64_t item) const {
  const Item which = at(item);
  std::vector<Json> keys;
  for (int64_t q = 0; q < options_.questions; ++q)
    keys.push_back(Json{{"length", which.length},
                        {"asked", asking_name(which.asking)},
                        {"trial", which.number * options_.questions + q}});
  return keys;
}

int64_t RecallTask::tokens(int64_t item) const { return at(item).length + asked_tokens(options_); }

// A text of `count` sentences from `first` on.
RecallText RecallTask::compose(int64_t first, int64_t count, const std::vector<Needle>& needles,
                               int64_t number) {
  std::vector<std::string_view> units;
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < count; ++i) {
    units.push_back(haystack_.sentence(first + i));
    sizes.push_back(haystack_.tokens(first + i, *model_.tokenizer));
  }
  std::vector<Planted> planted;
  for (std::size_t q = 0; q < needles.size(); ++q) {
    const double depth = depth_of(number * options_.questions + static_cast<int64_t>(q));
    planted.push_back({needles[q].statement, depth});
  }
  for (std::size_t q = 0; q < needles.size(); ++q) {
    const auto others = static_cast<int64_t>(needles[q].distractors.size());
    for (int64_t i = 0; i < others; ++i)
      planted.push_back({needles[q].distractors[static_cast<std::size_t>(i)],
                         shifted(planted[q].depth, i + 1, others + 1)});
  }
  RecallText text;
  std::vector<double> depths;
  text.reading.passage = plant(units, sizes, planted, depths);
  for (std::size_t q = 0; q < needles.size(); ++q) {
    text.questions.push_back({.needle = needles[q], .depth = depths[q], .tokens = {}});
    text.reading.questions.push_back({.text = needles[q].question});
  }
  const std::vector<AskedPrompt> prompts = asked_prompts(model_, text.reading, Asking::kUnseen);
  for (std::size_t q = 0; q < needles.size(); ++q) text.questions[q].tokens = prompts[q].after;
  text.tokens = prompts.front().before;
  return text;
}

RecallText RecallTask::make_text(int64_t length, int64_t number) {
  Rng rng(mix_seed(options_.seed, 0x4ecA11, static_cast<uint64_t>(number)));
  const auto first = static_cast<int64_t>(rng.below(static_cast<uint64_t>(haystack_.size())));
  std::vector<Needle> needles;
  std::set<std::string> taken;
  for (int64_t q = 0; q < options_.questions; ++q)
    needles.push_back(draw_needle(number * options_.questions + q, rng, taken));

  int64_t count = 0, tokens = 0;
  while (tokens < length) {
    if (count == haystack_.size())
      fail_argument("recall: a text of {} tokens is asked for, the files have about {}", length,
                    tokens);
    tokens += haystack_.tokens(first + count++, *model_.tokenizer);
  }
  for (;;) {
    RecallText text = compose(first, count, needles, number);
    int64_t excess = static_cast<int64_t>(text.tokens.size()) - length;
    if (excess <= 0) {
      for (const RecallText::Question& question : text.questions)
        if (static_cast<int64_t>(question.tokens.size()) > kQuestionTokens)
          fail_argument("recall: a question has {} tokens, at most {} are expected",
                        question.tokens.size(), kQuestionTokens);
      return text;
    }
    for (; excess > 0 && count > 0; --count)
      excess -= haystack_.tokens(first + count - 1, *model_.tokenizer);
    if (count == 0)
      fail_argument("recall: {} tokens have no room for the questions' facts and real text",
                    length);
  }
}

std::vector<Json> RecallTask::run(int64_t item, const EvictionConfig& eviction) {
  const Item which = at(item);
  if (which.length != last_.length || which.number != last_.number)
    last_text_ = make_text(which.length, which.number);
  last_ = which;
  const RecallText& text = last_text_;
  const std::vector<Answer> answers = ask_questions(model_, text.reading,
                                                    {.asking = which.asking,
                                                     .eviction = eviction,
                                                     .answer_tokens = options_.answer_tokens,
                                                     .total_tokens = tokens(item)});
  std::vector<Json> rows;
  for (std::size_t q = 0; q < answers.size(); ++q) {
    const Answer& answer = answers[q];
    const RecallText::Question& question = text.questions[q];
    rows.push_back(Json{{"kind", question.needle.kind},
                        {"depth", question.depth},
                        {"tokens", static_cast<int64_t>(text.tokens.size())},
                        {"prompt_tokens", answer.prompt_tokens},
                        {"question", question.needle.question},
                        {"expected", question.needle.answers.front()},
                        {"answer", answer.text},
                        {"correct", contains_answer(answer.text, question.needle.answers)}});
    rows.back().update(cache_fields(answer.kv));
  }
  return rows;
}

Json RecallTask::summarise(const RowTable& rows,
                           const std::vector<EvictionConfig>& settings) const {
  std::vector<Json> all;
  for (int64_t item = 0; item < items(); ++item)
    for (const Json& key : keys(item)) all.push_back(key);
  return recall_summary(rows, settings, all,
                        {.questions = options_.questions, .seed = options_.seed});
}

std::string RecallTask::table(const Json& summary) const { return recall_table(summary); }

}  // namespace coppice
