#include "coppice/eval/ruler.h"

#include <algorithm>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/eval/evaluator.h"
#include "coppice/eval/score_summary.h"
#include "coppice/models/model.h"

namespace coppice {
namespace {

RulerOptions checked(RulerOptions options, int64_t range) {
  if (options.kinds.empty()) options.kinds.assign(ruler_kinds().begin(), ruler_kinds().end());
  int64_t answer = 0;
  for (std::size_t i = 0; i < options.kinds.size(); ++i) {
    answer = std::max(answer, ruler_answer_tokens(options.kinds[i]));
    if (std::ranges::count(options.kinds, options.kinds[i]) > 1)
      fail_argument("ruler: the kind {} is given twice", options.kinds[i]);
  }
  if (options.trials < 1) fail_argument("ruler: expected trials, got {}", options.trials);
  if (options.lengths.empty() || options.asking.empty())
    fail_argument("ruler: expected lengths and ways to ask, got none");
  if (std::ranges::count(options.asking, Asking::kInTurn) > 0)
    fail_argument("ruler: a prompt has one question, which is asked unseen or seen, not in turn");
  std::ranges::sort(options.lengths);
  const auto repeated = std::ranges::unique(options.lengths);
  options.lengths.erase(repeated.begin(), repeated.end());
  if (options.lengths.back() + answer > range)
    fail(ErrorCode::kCapacity,
         "ruler: a prompt of {} tokens and {} of answer pass the model's {} positions",
         options.lengths.back(), answer, range);
  return options;
}

uint64_t seed_of(uint64_t seed, std::string_view kind, int64_t number) {
  const auto place = std::ranges::find(ruler_kinds(), kind) - ruler_kinds().begin();
  return mix_seed(seed, 0x4a1e4 + static_cast<uint64_t>(place), static_cast<uint64_t>(number));
}

}  // namespace

RulerTask::RulerTask(TextModel model, const std::vector<std::string>& passages,
                     const RulerOptions& options)
    : model_(std::move(model)),
      options_(checked(options, model_.base.model->args().max_position_embeddings)),
      haystack_(passages) {
  for (const std::string& kind : options_.kinds)  // what does not fit is said now
    for (const int64_t length : {options_.lengths.front(), options_.lengths.back()})
      make_prompt(kind, length, 0);
}

Json RulerTask::config() const { return Json::object(); }

int64_t RulerTask::items() const {
  return options_.trials * static_cast<int64_t>(options_.kinds.size() * options_.lengths.size() *
                                                options_.asking.size());
}

// Everything in turn, so that a run that is ended early has something of each.
RulerTask::Item RulerTask::at(int64_t item) const {
  const auto pick = [&item](const auto& list) {
    const auto count = static_cast<int64_t>(list.size());
    const auto place = static_cast<std::size_t>(item % count);
    item /= count;
    return list[place];
  };
  Item which;
  which.asking = pick(options_.asking);
  which.kind = pick(options_.kinds);
  which.length = pick(options_.lengths);
  which.number = item;
  return which;
}

std::vector<Json> RulerTask::keys(int64_t item) const {
  const Item which = at(item);
  return {Json{{"kind", which.kind},
               {"length", which.length},
               {"asked", asking_name(which.asking)},
               {"trial", which.number}}};
}

int64_t RulerTask::tokens(int64_t item) const {
  const Item which = at(item);
  return which.length + ruler_answer_tokens(which.kind);
}

int64_t RulerTask::prompt_tokens(const RulerPrompt& prompt) const {
  int64_t most = 0;
  for (const Asking asking : {Asking::kUnseen, Asking::kSeen})
    most = std::max(most, asked_prompts(model_, prompt.reading, asking).front().tokens());
  return most;
}

RulerPrompt RulerTask::make_prompt(std::string_view kind, int64_t length, int64_t number) {
  const RulerDraw draw(kind, seed_of(options_.seed, kind, number), haystack_, *model_.tokenizer);
  int64_t fits = draw.least();
  RulerPrompt best = draw.prompt(fits);
  int64_t best_tokens = prompt_tokens(best);
  if (best_tokens > length)
    fail_argument("ruler: the shortest prompt of the kind {} has {} tokens, {} are asked for", kind,
                  best_tokens, length);
  // Between a size that fits and one that does not.
  int64_t over = fits + 1;
  for (;;) {
    over = std::min(draw.most(), fits + std::max<int64_t>(1, fits));
    if (over == fits)
      fail_argument("ruler: a prompt of {} tokens is asked for, the text gives the kind {} {}",
                    length, kind, best_tokens);
    RulerPrompt prompt = draw.prompt(over);
    const int64_t found = prompt_tokens(prompt);
    if (found > length) break;
    fits = over;
    best = std::move(prompt);
    best_tokens = found;
  }
  while (over - fits > 1) {
    const int64_t middle = fits + (over - fits) / 2;
    RulerPrompt prompt = draw.prompt(middle);
    if (prompt_tokens(prompt) > length) {
      over = middle;
    } else {
      fits = middle;
      best = std::move(prompt);
    }
  }
  return best;
}

std::vector<Json> RulerTask::run(int64_t item, const EvictionConfig& eviction) {
  const Item which = at(item);
  if (which.kind != last_.kind || which.length != last_.length || which.number != last_.number)
    last_prompt_ = make_prompt(which.kind, which.length, which.number);
  last_ = which;
  const RulerPrompt& prompt = last_prompt_;
  const Answer answer = ask_questions(model_, prompt.reading,
                                      {.asking = which.asking,
                                       .eviction = eviction,
                                       .answer_tokens = ruler_answer_tokens(which.kind),
                                       .total_tokens = tokens(item)})
                            .front();
  Json row = {{"tokens", answer.prompt_tokens},
              {"question", prompt.reading.questions.front().text},
              {"expected", fmt::format("{}", fmt::join(prompt.references, " "))},
              {"answer", answer.text},
              {"score", ruler_score(answer.text, prompt.references)}};
  row.update(cache_fields(answer.kv));
  return {row};
}

Json RulerTask::summarise(const RowTable& rows, const std::vector<EvictionConfig>& settings) const {
  std::vector<Json> all;
  for (int64_t item = 0; item < items(); ++item)
    for (const Json& key : keys(item)) all.push_back(key);
  return score_summary(rows, settings, all,
                       {.fields = {"kind", "length", "asked"}, .seed = options_.seed});
}

std::string RulerTask::table(const Json& summary) const {
  return score_table(summary, {"kind", "length", "asked"});
}

}  // namespace coppice
