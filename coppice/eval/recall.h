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
// 0.95: any 10 K trials in turn pair every kind with every depth once. The rest is as in
// fact_task.h.
#pragma once

#include <vector>

#include "coppice/eval/fact_task.h"

namespace coppice {

using RecallOptions = FactOptions;

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

class RecallTask final : public FactTask {
 public:
  // Throws as FactTask, and kInvalidArgument for a chat template that does not write a message as
  // it is.
  RecallTask(TextModel model, const std::vector<std::string>& passages,
             const RecallOptions& options);

  std::vector<Json> run(int64_t item, const EvictionConfig& eviction) override;

  // The text `number` of a length.
  RecallText make_text(int64_t length, int64_t number);

 private:
  RecallText compose(const Draft& draft);

  Item last_ = {.length = -1, .number = 0, .asking = Asking::kUnseen};  // what last_text_ is of
  RecallText last_text_;
};

}  // namespace coppice
