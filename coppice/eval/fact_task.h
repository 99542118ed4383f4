// What tasks share that hide facts (needles.h) in real text and ask for them at its end: which
// items there are, how a text of a length is fitted, how a row and a summary look. A task says how
// a text is put together and asked (recall.h, talk.h).
//
// An item is one text under one way of asking (asking.h), with `questions` trials. Its facts, their
// kinds and where it begins depend on the seed and its number alone, whatever else is run, and are
// the same for every length. Summed up as accuracy (Wilson interval) and its ratio to the full
// cache's on the same trials (paired bootstrap over texts).
#pragma once

#include <functional>
#include <vector>

#include "coppice/eval/asking.h"
#include "coppice/eval/haystack.h"
#include "coppice/eval/needles.h"

namespace coppice {

struct FactOptions {
  std::vector<int64_t> lengths = {2000, 4000, 7000};
  int64_t trials = 40;    // of each length
  int64_t questions = 1;  // of each text
  int64_t answer_tokens = 24;
  std::vector<Asking> asking = {Asking::kUnseen};
  uint64_t seed = 0;
};

class FactTask : public EvalTask {
 public:
  std::string_view name() const override { return name_; }
  Json config() const override;
  int64_t items() const override;
  std::vector<Json> keys(int64_t item) const override;
  int64_t tokens(int64_t item) const override;
  std::vector<std::string> outcome() const override { return {"answer", "correct"}; }
  Json summarise(const RowTable& rows, const std::vector<EvictionConfig>& settings) const override;
  std::string table(const Json& summary) const override;

 protected:
  // passages: the real text. Throws kInvalidArgument for options out of range or text that is too
  // short, kCapacity for a length beyond the model's positions.
  FactTask(std::string_view name, TextModel model, const std::vector<std::string>& passages,
           const FactOptions& options);

  struct Item {
    int64_t length;
    int64_t number;
    Asking asking;
  };
  Item at(int64_t item) const;

  // What a text is made of: sentences first .. first + count - 1 of the haystack, and its facts.
  struct Draft {
    int64_t number = 0;
    int64_t first = 0, count = 0;
    std::vector<Needle> needles;
  };
  // Hands drafts to `tokens_of`, which makes a text and tells its tokens, the first with more
  // sentences than fit, until those are at most `length`. `salt` tells the tasks' draws apart.
  void fit(uint64_t salt, int64_t length, int64_t number,
           const std::function<int64_t(const Draft&)>& tokens_of);
  // Throws where what follows a text, a question, is longer than there is room for.
  void check_question(int64_t tokens) const;

  AskingOptions asking_options(int64_t item, const EvictionConfig& eviction) const;
  // `tokens`: of the text.
  static Json row(const Needle& needle, double depth, int64_t tokens, const Answer& answer);

  TextModel model_;
  FactOptions options_;
  Haystack haystack_;

 private:
  std::string name_;
};

}  // namespace coppice
