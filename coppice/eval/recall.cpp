#include "coppice/eval/recall.h"

#include <utility>

namespace coppice {
namespace {

constexpr int64_t kDepths = 10;

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

}  // namespace

RecallTask::RecallTask(TextModel model, const std::vector<std::string>& passages,
                       const RecallOptions& options)
    : FactTask("recall", std::move(model), passages, options) {
  make_text(options_.lengths.back(), 0);  // what does not fit is said now
}

RecallText RecallTask::compose(const Draft& draft) {
  std::vector<std::string_view> units;
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < draft.count; ++i) {
    units.push_back(haystack_.sentence(draft.first + i));
    sizes.push_back(haystack_.tokens(draft.first + i, *model_.tokenizer));
  }
  std::vector<Planted> planted;
  for (std::size_t q = 0; q < draft.needles.size(); ++q) {
    const double depth = depth_of(draft.number * options_.questions + static_cast<int64_t>(q));
    planted.push_back({draft.needles[q].statement, depth});
  }
  for (std::size_t q = 0; q < draft.needles.size(); ++q) {
    const auto others = static_cast<int64_t>(draft.needles[q].distractors.size());
    for (int64_t i = 0; i < others; ++i)
      planted.push_back({draft.needles[q].distractors[static_cast<std::size_t>(i)],
                         shifted(planted[q].depth, i + 1, others + 1)});
  }
  RecallText text;
  std::vector<double> depths;
  text.reading.passage = plant(units, sizes, planted, depths);
  for (std::size_t q = 0; q < draft.needles.size(); ++q) {
    text.questions.push_back({.needle = draft.needles[q], .depth = depths[q], .tokens = {}});
    text.reading.questions.push_back({.text = draft.needles[q].question});
  }
  const std::vector<AskedPrompt> prompts = asked_prompts(model_, text.reading, Asking::kUnseen);
  for (std::size_t q = 0; q < draft.needles.size(); ++q)
    text.questions[q].tokens = prompts[q].after;
  text.tokens = prompts.front().before;
  return text;
}

RecallText RecallTask::make_text(int64_t length, int64_t number) {
  RecallText text;
  fit(0x4ecA11, length, number, [&](const Draft& draft) {
    text = compose(draft);
    return static_cast<int64_t>(text.tokens.size());
  });
  for (const RecallText::Question& question : text.questions)
    check_question(static_cast<int64_t>(question.tokens.size()));
  return text;
}

std::vector<Json> RecallTask::run(int64_t item, const EvictionConfig& eviction) {
  const Item which = at(item);
  if (which.length != last_.length || which.number != last_.number)
    last_text_ = make_text(which.length, which.number);
  last_ = which;
  const auto tokens = static_cast<int64_t>(last_text_.tokens.size());
  const std::vector<Answer> answers =
      ask_questions(model_, last_text_.reading, asking_options(item, eviction));
  std::vector<Json> rows;
  for (std::size_t q = 0; q < answers.size(); ++q) {
    const RecallText::Question& question = last_text_.questions[q];
    rows.push_back(row(question.needle, question.depth, tokens, answers[q]));
  }
  return rows;
}

}  // namespace coppice
