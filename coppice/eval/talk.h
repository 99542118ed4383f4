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
// Facts, their kinds and where the text begins depend on the seed and the talk's number alone.
// Summed up as recall is: accuracy, and its ratio to the full cache's.
#pragma once

#include <vector>

#include "coppice/eval/asking.h"
#include "coppice/eval/haystack.h"
#include "coppice/eval/needles.h"

namespace coppice {

struct TalkOptions {
  std::vector<int64_t> lengths = {2000, 4000};
  int64_t trials = 40;    // of each length
  int64_t questions = 2;  // facts of each talk, each asked for
  int64_t answer_tokens = 24;
  std::vector<Asking> asking = {Asking::kUnseen};
  uint64_t seed = 0;
};

// One conversation with its questions.
struct Talk {
  Reading reading;  // the turns are its history; no passage
  std::vector<Needle> needles;
  std::vector<double> depths;  // of each fact: share of the user's turns in front of it
  int64_t turns = 0;           // messages before the question
  int64_t tokens = 0;          // of all in front of the question
};

class TalkTask final : public EvalTask {
 public:
  // passages: the real text. Throws as RecallTask.
  TalkTask(TextModel model, const std::vector<std::string>& passages, const TalkOptions& options);

  std::string_view name() const override { return "talk"; }
  Json config() const override;
  int64_t items() const override;
  std::vector<Json> keys(int64_t item) const override;
  int64_t tokens(int64_t item) const override;
  std::vector<Json> run(int64_t item, const EvictionConfig& eviction) override;
  std::vector<std::string> outcome() const override { return {"answer", "correct"}; }
  Json summarise(const RowTable& rows, const std::vector<EvictionConfig>& settings) const override;
  std::string table(const Json& summary) const override;

  // The talk `number` of a length.
  Talk make_talk(int64_t length, int64_t number);

 private:
  struct Item {
    int64_t length;
    int64_t number;
    Asking asking;
  };
  Item at(int64_t item) const;
  Talk compose(int64_t first, int64_t count, const std::vector<Needle>& needles,
               int64_t number) const;
  std::vector<Answer> ask(const Talk& talk, const AskingOptions& options) const;

  TextModel model_;
  TalkOptions options_;
  Haystack haystack_;
  Item last_ = {.length = -1, .number = 0, .asking = Asking::kUnseen};  // what last_talk_ is of
  Talk last_talk_;
};

}  // namespace coppice
