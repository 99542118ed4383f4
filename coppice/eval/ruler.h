// RULER's synthetic family at any length (ruler_prompts.h), under a KV budget.
//
// A prompt, from the chat template's first token to the last of the question, has at most `length`
// tokens and as many of them as its sentences or words allow; it is made to fit with the question
// asked both ways (asking.h), so that unseen and seen read the very same text, and is never cut
// afterwards. What can not fit is refused, as a rule when the task is made.
//
// The score of a trial is the share of its references that the greedy answer names. Trials of a
// kind depend on the seed, their number and the length alone; kinds are averaged apart.
#pragma once

#include <vector>

#include "coppice/eval/asking.h"
#include "coppice/eval/ruler_prompts.h"

namespace coppice {

struct RulerOptions {
  std::vector<std::string> kinds = {};  // none: all
  std::vector<int64_t> lengths = {2000};
  int64_t trials = 10;  // of each kind, length and way to ask
  std::vector<Asking> asking = {Asking::kUnseen};
  uint64_t seed = 0;
};

class RulerTask final : public EvalTask {
 public:
  // passages: the real text. Throws kInvalidArgument for options out of range, a length that a kind
  // cannot be brought down to or has no text for, or a template that does not write a message as it
  // is; kCapacity for a length beyond the model's positions.
  RulerTask(TextModel model, const std::vector<std::string>& passages, const RulerOptions& options);

  std::string_view name() const override { return "ruler"; }
  Json config() const override;
  int64_t items() const override;
  std::vector<Json> keys(int64_t item) const override;
  int64_t tokens(int64_t item) const override;
  std::vector<Json> run(int64_t item, const EvictionConfig& eviction) override;
  std::vector<std::string> outcome() const override { return {"answer", "score"}; }
  Json summarise(const RowTable& rows, const std::vector<EvictionConfig>& settings) const override;
  std::string table(const Json& summary) const override;

  // The trial `number` of a kind at a length.
  RulerPrompt make_prompt(std::string_view kind, int64_t length, int64_t number);

 private:
  struct Item {
    std::string kind;
    int64_t length = 0;
    int64_t number = 0;
    Asking asking = Asking::kUnseen;
  };
  Item at(int64_t item) const;
  int64_t prompt_tokens(const RulerPrompt& prompt) const;

  TextModel model_;
  RulerOptions options_;
  Haystack haystack_;
  Item last_;  // what last_prompt_ is of
  RulerPrompt last_prompt_;
};

}  // namespace coppice
