// Recall: facts hidden in real text, asked for at the end, when what was not thought worth keeping
// is gone.
//
// A text of at most `length` tokens is one user message of the model's chat template: a passage of
// real text with facts between its sentences (needles.h). It is read and evicted as serving does,
// chunk by chunk. Then the question follows, in the same message, and the answer is generated
// greedily; it is right when it holds the exact answer. Questions are asked unseen, seen or in turn
// (asking.h); a question that is seen stands in front of the text besides, and adds its tokens.
//
// Trial t, of text t / questions, has kind t mod K of the K kinds, and one of 10 depths, 0.05 to
// 0.95: any 10 K trials in turn pair every kind with every depth once. A text depends on its
// length, its number and the seed alone, whatever else is run; its facts and where it begins are
// the same for every length.
//
// Summed up as accuracy (Wilson interval) and its ratio to the full cache's on the same trials
// (paired bootstrap over texts).
#pragma once

#include <vector>

#include "coppice/eval/asking.h"
#include "coppice/eval/haystack.h"
#include "coppice/eval/needles.h"

namespace coppice {

struct RecallOptions {
  std::vector<int64_t> lengths = {2000, 4000, 7000};
  int64_t trials = 40;    // of each length
  int64_t questions = 1;  // of each text
  int64_t answer_tokens = 24;
  std::vector<Asking> asking = {Asking::kUnseen};
  uint64_t seed = 0;
};

// One text with its questions, ready to be read.
struct RecallText {
  struct Question {
    Needle needle;
    double depth = 0.0;           // share of the passage in front of it
    std::vector<int32_t> tokens;  // what follows the text when it is unseen: the question
  };
  Reading reading;
  std::vector<int32_t> tokens;  // the template's opening and the passage
  std::vector<Question> questions;
};

class RecallTask final : public EvalTask {
 public:
  // passages: the real text. Throws kInvalidArgument for options out of range, text that is too
  // short, or a chat template that does not write a message as it is; kCapacity for a length beyond
  // the model's positions.
  RecallTask(TextModel model, const std::vector<std::string>& passages,
             const RecallOptions& options);

  std::string_view name() const override { return "recall"; }
  Json config() const override;
  int64_t items() const override;
  std::vector<Json> keys(int64_t item) const override;
  int64_t tokens(int64_t item) const override;
  std::vector<Json> run(int64_t item, const EvictionConfig& eviction) override;
  std::vector<std::string> outcome() const override { return {"answer", "correct"}; }
  Json summarise(const RowTable& rows, const std::vector<EvictionConfig>& settings) const override;
  std::string table(const Json& summary) const override;

  // The text `number` of a length.
  RecallText make_text(int64_t length, int64_t number);

 private:
  struct Item {
    int64_t length;
    int64_t number;
    Asking asking;
  };
  Item at(int64_t item) const;
  RecallText compose(int64_t first, int64_t count, const std::vector<Needle>& needles,
                     int64_t number);
  void encode(RecallText& text) const;

  TextModel model_;
  RecallOptions options_;
  Haystack haystack_;
  Item last_ = {.length = -1, .number = 0, .asking = Asking::kUnseen};  // what last_text_ is of
  RecallText last_text_;
};

}  // namespace coppice
