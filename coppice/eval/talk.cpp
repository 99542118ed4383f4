#include "coppice/eval/talk.h"

#include <algorithm>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/recall_summary.h"
#include "coppice/models/model.h"

namespace coppice {
namespace {

constexpr int64_t kQuestionTokens = 256;  // room for the question and the template's words
constexpr int64_t kLeastLength = 64;
constexpr double kEarly = 0.25;  // facts are told in this share of the turns

// Room for what follows a talk, or announces its question.
int64_t asked_tokens(const TalkOptions& options) {
  const int64_t one = kQuestionTokens + options.answer_tokens;
  int64_t most = one;
  for (const Asking asking : options.asking) {
    if (asking == Asking::kInTurn) most = std::max(most, options.questions * one);
    if (asking == Asking::kSeen) most = std::max(most, one + kQuestionTokens);
  }
  return most;
}

TalkOptions checked(TalkOptions options, int64_t range) {
  const auto kinds = static_cast<int64_t>(needle_kinds().size());
  if (options.trials < 1 || options.questions < 1 || options.questions > kinds ||
      options.answer_tokens < 1)
    fail_argument(
        "talk: expected at least 1 trial, 1 to {} questions a talk and 1 token of answer, got {}, "
        "{} and {}",
        kinds, options.trials, options.questions, options.answer_tokens);
  if (options.asking.empty() || options.lengths.empty())
    fail_argument("talk: expected lengths and ways to ask, got none");
  std::ranges::sort(options.lengths);
  const auto repeated = std::ranges::unique(options.lengths);
  options.lengths.erase(repeated.begin(), repeated.end());
  if (options.lengths.front() < kLeastLength)
    fail_argument("talk: a talk must have at least {} tokens, got {}", kLeastLength,
                  options.lengths.front());
  const int64_t most = options.lengths.back() + asked_tokens(options);
  if (most > range)
    fail(ErrorCode::kCapacity,
         "talk: {} tokens with {} for question and answer pass the model's {} positions",
         options.lengths.back(), most - options.lengths.back(), range);
  return options;
}

OrderedJson message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

std::string trimmed(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \n\t\r");
  return end == std::string::npos ? std::string() : text.substr(0, end + 1);
}

// What each side says in one exchange.
struct Exchange {
  std::string user, assistant;
};

}  // namespace

TalkTask::TalkTask(TextModel model, const std::vector<std::string>& passages,
                   const TalkOptions& options)
    : model_(std::move(model)),
      options_(checked(options, model_.base.model->args().max_position_embeddings)),
      haystack_(passages) {
  make_talk(options_.lengths.back(), 0);  // what does not fit is said now
}

Json TalkTask::config() const {
  return {{"questions", options_.questions}, {"answer_tokens", options_.answer_tokens}};
}

int64_t TalkTask::items() const {
  const int64_t talks = (options_.trials + options_.questions - 1) / options_.questions;
  return talks * static_cast<int64_t>(options_.lengths.size() * options_.asking.size());
}

// All lengths and ways in turn, so that a run that is ended early has something of each.
TalkTask::Item TalkTask::at(int64_t item) const {
  const auto lengths = static_cast<int64_t>(options_.lengths.size());
  const auto ways = static_cast<int64_t>(options_.asking.size());
  return {.length = options_.lengths[static_cast<std::size_t>(item / ways % lengths)],
          .number = item / ways / lengths,
          .asking = options_.asking[static_cast<std::size_t>(item % ways)]};
}

std::vector<Json> TalkTask::keys(int64_t item) const {
  const Item which = at(item);
  std::vector<Json> keys;
  for (int64_t q = 0; q < options_.questions; ++q)
    keys.push_back(Json{{"length", which.length},
                        {"asked", asking_name(which.asking)},
                        {"trial", which.number * options_.questions + q}});
  return keys;
}

int64_t TalkTask::tokens(int64_t item) const { return at(item).length + asked_tokens(options_); }

// A talk of `count` sentences from `first` on.
Talk TalkTask::compose(int64_t first, int64_t count, const std::vector<Needle>& needles,
                       int64_t number) const {
  // The sizes of exchanges do not depend on how many there are.
  Rng rng(mix_seed(options_.seed, 0x7a1c, static_cast<uint64_t>(number)));
  std::vector<Exchange> exchanges;
  for (int64_t at = 0; at < count;) {
    Exchange& exchange = exchanges.emplace_back();
    for (auto [said, most] : {std::pair{&exchange.user, 3}, std::pair{&exchange.assistant, 2}})
      for (auto left = 1 + rng.below(static_cast<uint64_t>(most)); left > 0 && at < count; --left)
        *said += haystack_.sentence(first + at++);
  }
  if (!exchanges.empty() && exchanges.back().assistant.empty()) exchanges.pop_back();
  Talk talk;
  if (exchanges.empty()) return talk;
  const auto turns = static_cast<double>(exchanges.size());
  const auto tell = [&](const std::string& sentence, double depth) {
    const auto place = static_cast<std::size_t>(depth * turns);
    std::string& said = exchanges[std::min(place, exchanges.size() - 1)].user;
    said = trimmed(said) + " " + sentence;
    return static_cast<double>(place) / turns;
  };
  const auto facts = static_cast<double>(needles.size());
  for (std::size_t q = 0; q < needles.size(); ++q) {
    talk.depths.push_back(
        tell(needles[q].statement, kEarly * (static_cast<double>(q) + 0.5) / facts));
    const auto others = static_cast<double>(needles[q].distractors.size());
    for (std::size_t i = 0; i < needles[q].distractors.size(); ++i)
      tell(needles[q].distractors[i], (static_cast<double>(i) + 0.5) / others);
    talk.reading.questions.push_back({.text = needles[q].question});
  }
  talk.needles = needles;
  talk.reading.separator = "Question: ";
  for (const Exchange& exchange : exchanges) {
    talk.reading.history.push_back(message("user", trimmed(exchange.user)));
    talk.reading.history.push_back(message("assistant", trimmed(exchange.assistant)));
  }
  talk.turns = static_cast<int64_t>(talk.reading.history.size());
  const std::vector<AskedPrompt> prompts = asked_prompts(model_, talk.reading, Asking::kUnseen);
  for (const AskedPrompt& prompt : prompts)
    if (static_cast<int64_t>(prompt.after.size()) > kQuestionTokens)
      fail_argument("talk: a question has {} tokens, at most {} are expected", prompt.after.size(),
                    kQuestionTokens);
  talk.tokens = static_cast<int64_t>(prompts.front().before.size());
  return talk;
}

Talk TalkTask::make_talk(int64_t length, int64_t number) {
  Rng rng(mix_seed(options_.seed, 0x7a1d, static_cast<uint64_t>(number)));
  const auto first = static_cast<int64_t>(rng.below(static_cast<uint64_t>(haystack_.size())));
  std::vector<Needle> needles;
  std::set<std::string> taken;
  for (int64_t q = 0; q < options_.questions; ++q)
    needles.push_back(draw_needle(number * options_.questions + q, rng, taken));
  int64_t count = 0, tokens = 0;
  while (tokens < length) {
    if (count == haystack_.size())
      fail_argument("talk: {} tokens are asked for, the files have about {}", length, tokens);
    tokens += haystack_.tokens(first + count++, *model_.tokenizer);
  }
  while (count > 1) {
    Talk talk = compose(first, count, needles, number);
    int64_t excess = talk.tokens - length;
    if (talk.turns > 0 && excess <= 0) return talk;
    do {
      excess -= haystack_.tokens(first + --count, *model_.tokenizer);
    } while (excess > 0 && count > 1);
  }
  fail_argument("talk: {} tokens have no room for a talk with its facts", length);
}

std::vector<Answer> TalkTask::ask(const Talk& talk, const AskingOptions& options) const {
  if (options.asking != Asking::kSeen) return ask_questions(model_, talk.reading, options);
  std::vector<Answer> answers;
  AskingOptions once = options;
  once.asking = Asking::kUnseen;  // at the end; it was announced
  for (const Reading::Question& question : talk.reading.questions) {
    Reading reading = talk.reading;
    reading.questions = {question};
    OrderedJson& opening = reading.history.front()["content"];
    opening = "Later I will ask: " + question.text + "\n\n" + opening.get<std::string>();
    answers.push_back(ask_questions(model_, reading, once).front());
  }
  return answers;
}

std::vector<Json> TalkTask::run(int64_t item, const EvictionConfig& eviction) {
  const Item which = at(item);
  if (which.length != last_.length || which.number != last_.number)
    last_talk_ = make_talk(which.length, which.number);
  last_ = which;
  const Talk& talk = last_talk_;
  const std::vector<Answer> answers = ask(talk, {.asking = which.asking,
                                                 .eviction = eviction,
                                                 .answer_tokens = options_.answer_tokens,
                                                 .total_tokens = tokens(item)});
  std::vector<Json> rows;
  for (std::size_t q = 0; q < answers.size(); ++q) {
    const Answer& answer = answers[q];
    const Needle& needle = talk.needles[q];
    rows.push_back(Json{{"kind", needle.kind},
                        {"depth", talk.depths[q]},
                        {"turns", talk.turns},
                        {"tokens", talk.tokens},
                        {"prompt_tokens", answer.prompt_tokens},
                        {"question", needle.question},
                        {"expected", needle.answers.front()},
                        {"answer", answer.text},
                        {"correct", contains_answer(answer.text, needle.answers)},
                        {"kept_entries", answer.kv.kept_entries},
                        {"evicted_entries", answer.kv.evicted_entries},
                        {"peak_entries", answer.kv.peak_entries},
                        {"bytes_peak", answer.kv.bytes_peak},
                        {"bytes_bound", answer.kv.bytes_bound}});
  }
  return rows;
}

Json TalkTask::summarise(const RowTable& rows, const std::vector<EvictionConfig>& settings) const {
  std::vector<Json> all;
  for (int64_t item = 0; item < items(); ++item)
    for (const Json& key : keys(item)) all.push_back(key);
  return recall_summary(rows, settings, all,
                        {.questions = options_.questions, .seed = options_.seed});
}

std::string TalkTask::table(const Json& summary) const { return recall_table(summary); }

}  // namespace coppice
