// Talk: facts that a user tells early in a conversation of many turns and asks for at its end.
//
// A talk of at most `length` tokens is a chat in the model's template, made by rule from real text:
// its sentences in their order, a few said by the user and the next one or two by the assistant, in
// turn. Facts (needles.h) stand behind the user's sentences in the first quarter of the turns;
// those of the same form about something else anywhere. It is read and evicted as serving does,
// then a question follows as a turn of its own and is answered greedily; right is what holds the
// exact answer. Questions are asked (asking.h) unseen, in turn, or seen: then the first message
// announces the question.
//
// The rest is as in fact_task.h.
#pragma once

#include <vector>

#include "coppice/eval/fact_task.h"

namespace coppice {

using TalkOptions = FactOptions;

// One conversation with its questions.
struct Talk {
  Reading reading;  // the turns are its history; no passage
  std::vector<Needle> needles;
  std::vector<double> depths;  // of each fact: share of the user's turns in front of it
  int64_t turns = 0;           // messages before the question
  int64_t tokens = 0;          // of all in front of the question
};

class TalkTask final : public FactTask {
 public:
  TalkTask(TextModel model, const std::vector<std::string>& passages, const TalkOptions& options);

  std::vector<Json> run(int64_t item, const EvictionConfig& eviction) override;

  // The talk `number` of a length.
  Talk make_talk(int64_t length, int64_t number);

 private:
  Talk compose(const Draft& draft) const;
  std::vector<Answer> ask(const Talk& talk, const AskingOptions& options) const;

  Item last_ = {.length = -1, .number = 0, .asking = Asking::kUnseen};  // what last_talk_ is of
  Talk last_talk_;
};

}  // namespace coppice
