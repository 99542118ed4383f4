#include "coppice/eval/talk.h"

#include <algorithm>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"

namespace coppice {
namespace {

constexpr double kEarly = 0.25;  // facts are told in this share of the turns

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
    : FactTask("talk", std::move(model), passages, options) {
  make_talk(options_.lengths.back(), 0);  // what does not fit is said now
}

Talk TalkTask::compose(const Draft& draft) const {
  // The sizes of exchanges do not depend on how many there are.
  Rng rng(mix_seed(options_.seed, 0x7a1c, static_cast<uint64_t>(draft.number)));
  std::vector<Exchange> exchanges;
  for (int64_t at = 0; at < draft.count;) {
    Exchange& exchange = exchanges.emplace_back();
    for (auto [said, most] : {std::pair{&exchange.user, 3}, std::pair{&exchange.assistant, 2}})
      for (auto left = 1 + rng.below(static_cast<uint64_t>(most)); left > 0 && at < draft.count;
           --left)
        *said += haystack_.sentence(draft.first + at++);
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
  const auto facts = static_cast<double>(draft.needles.size());
  for (std::size_t q = 0; q < draft.needles.size(); ++q) {
    talk.depths.push_back(
        tell(draft.needles[q].statement, kEarly * (static_cast<double>(q) + 0.5) / facts));
    const auto others = static_cast<double>(draft.needles[q].distractors.size());
    for (std::size_t i = 0; i < draft.needles[q].distractors.size(); ++i)
      tell(draft.needles[q].distractors[i], (static_cast<double>(i) + 0.5) / others);
    talk.reading.questions.push_back({.text = draft.needles[q].question});
  }
  talk.needles = draft.needles;
  talk.reading.separator = "Question: ";
  for (const Exchange& exchange : exchanges) {
    talk.reading.history.push_back(message("user", trimmed(exchange.user)));
    talk.reading.history.push_back(message("assistant", trimmed(exchange.assistant)));
  }
  talk.turns = static_cast<int64_t>(talk.reading.history.size());
  const std::vector<AskedPrompt> prompts = asked_prompts(model_, talk.reading, Asking::kUnseen);
  for (const AskedPrompt& prompt : prompts)
    check_question(static_cast<int64_t>(prompt.after.size()));
  talk.tokens = static_cast<int64_t>(prompts.front().before.size());
  return talk;
}

Talk TalkTask::make_talk(int64_t length, int64_t number) {
  Talk talk;
  fit(0x7a1d, length, number, [&](const Draft& draft) {
    talk = compose(draft);
    if (talk.turns == 0)
      fail_argument("talk: {} tokens have no room for a talk with its facts", length);
    return talk.tokens;
  });
  return talk;
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
  const std::vector<Answer> answers = ask(talk, asking_options(item, eviction));
  std::vector<Json> rows;
  for (std::size_t q = 0; q < answers.size(); ++q) {
    rows.push_back(row(talk.needles[q], talk.depths[q], talk.tokens, answers[q]));
    rows.back()["turns"] = talk.turns;
  }
  return rows;
}

}  // namespace coppice
