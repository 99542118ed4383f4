#include "coppice/eval/asking.h"

#include <algorithm>

#include "coppice/core/error.h"
#include "coppice/eval/eval_engine.h"

namespace coppice {
namespace {

constexpr Asking kAll[] = {Asking::kUnseen, Asking::kSeen, Asking::kInTurn};

// What stands in front of a question where nothing else does.
std::string_view bare(std::string_view separator) {
  const std::size_t first = separator.find_first_not_of(" \n");
  return first == std::string_view::npos ? std::string_view() : separator.substr(first);
}

// A rendered chat with the opening of the answer behind it.
class Prompt final {
 public:
  Prompt(const TextModel& model, const OrderedJson& messages, std::string_view opening)
      : model_(model) {
    ChatRequest chat;
    chat.messages = messages;
    prompt_ = model.chat->render(chat);
    const auto end = static_cast<int64_t>(prompt_.text.size());
    if (!opening.empty())
      prompt_.plain.push_back({end, end + static_cast<int64_t>(opening.size())});
    prompt_.text += opening;
  }

  const std::string& text() const { return prompt_.text; }

  // Where the last occurrence of a message's content begins.
  std::size_t place_of(std::string_view content) const {
    const std::size_t place = prompt_.text.rfind(content);
    if (place == std::string::npos)
      fail_argument("evaluation: the model's chat template does not write a message as it is");
    return place;
  }

  // Of the bytes from `begin` on, up to `end`; what is the user's stays text.
  std::vector<int32_t> tokens(std::size_t begin, std::size_t end) const {
    std::vector<TextRange> plain;
    const auto from = static_cast<int64_t>(begin), to = static_cast<int64_t>(end);
    for (const TextRange& range : prompt_.plain)
      if (std::max(range.begin, from) < std::min(range.end, to))
        plain.push_back({std::max(range.begin, from) - from, std::min(range.end, to) - from});
    return model_.tokenizer->encode(std::string_view(prompt_.text).substr(begin, end - begin), {},
                                    plain);
  }

 private:
  const TextModel& model_;
  RenderedPrompt prompt_;
};

OrderedJson message(std::string_view role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

Request greedy(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0.0;
  request.sampling.max_tokens = max_tokens;
  return request;
}

Answer answer_of(const RequestOutput& output) {
  return {.text = output.text,
          .prompt_tokens = output.usage.tokens.prompt,
          .ended = output.finish_reason == FinishReason::kStop,
          .kv = output.usage.kv};
}

std::vector<Answer> ask_apart(Engine& engine, const std::vector<AskedPrompt>& prompts,
                              int64_t answer_tokens) {
  std::vector<Answer> answers;
  std::optional<SessionId> session;
  if (!prompts.front().before.empty()) {
    Request read = greedy(prompts.front().before, 0);
    read.keep_session = true;
    session = engine.run(read).session;
  }
  for (std::size_t q = 0; q < prompts.size(); ++q) {
    Request ask = greedy(prompts[q].after, answer_tokens);
    if (session) ask.session = q + 1 == prompts.size() ? *session : engine.fork_session(*session);
    answers.push_back(answer_of(engine.run(ask)));
  }
  return answers;
}

std::vector<Answer> ask_in_turn(Engine& engine, const TextModel& model, const Reading& reading,
                                const AskedPrompt& first, int64_t answer_tokens) {
  std::vector<Answer> answers;
  OrderedJson messages = reading.history;
  std::string read_text;  // what the session holds
  std::optional<SessionId> session;
  if (!first.before.empty()) {
    Request read = greedy(first.before, 0);
    read.keep_session = true;
    session = engine.run(read).session;
    read_text = first.read_text;
  }
  for (std::size_t q = 0; q < reading.questions.size(); ++q) {
    const Reading::Question& question = reading.questions[q];
    messages.push_back(message("user", (q == 0 ? reading.passage + reading.separator
                                               : std::string(bare(reading.separator))) +
                                           question.text));
    const Prompt prompt(model, messages, question.opening);
    if (!prompt.text().starts_with(read_text))
      fail_argument(
          "evaluation: the model's chat template rewrites earlier turns, so questions cannot be "
          "asked in turn");
    Request ask = greedy(prompt.tokens(read_text.size(), prompt.text().size()), answer_tokens);
    ask.session = session;
    ask.keep_session = true;
    const RequestOutput output = engine.run(ask);
    session = output.session;
    answers.push_back(answer_of(output));
    read_text = prompt.text() + output.text;
    if (output.finish_reason == FinishReason::kStop && !output.tokens.empty() &&
        model.tokenizer->is_special(output.tokens.back().id))
      read_text += model.tokenizer->token_text(output.tokens.back().id);
    messages.push_back(message("assistant", question.opening + output.text));
  }
  return answers;
}

}  // namespace

std::string_view asking_name(Asking asking) {
  return asking == Asking::kUnseen ? "unseen" : asking == Asking::kSeen ? "seen" : "in-turn";
}

std::vector<Asking> parse_asking(const std::vector<std::string>& names) {
  std::vector<Asking> chosen;
  for (const Asking one : kAll) {
    const bool wanted = std::ranges::any_of(names, [one](const std::string& name) {
      return name == asking_name(one) || (name == "both" && one != Asking::kInTurn);
    });
    if (wanted) chosen.push_back(one);
  }
  for (const std::string& name : names)
    if (name != "both" && std::ranges::find(kAll, name, asking_name) == std::end(kAll))
      fail_argument("a question is asked unseen, seen, in-turn or both, got \"{}\"", name);
  if (chosen.empty()) fail_argument("expected a way to ask questions, got none");
  return chosen;
}

std::vector<AskedPrompt> asked_prompts(const TextModel& model, const Reading& reading,
                                       Asking asking) {
  std::vector<AskedPrompt> prompts;
  for (const Reading::Question& question : reading.questions) {
    std::string content = reading.passage + reading.separator + question.text;
    std::size_t ahead = reading.passage.size();
    if (asking == Asking::kSeen) {
      content = std::string(bare(reading.separator)) + question.text + "\n\n" + content;
      ahead = 0;
    }
    OrderedJson messages = reading.history;
    messages.push_back(message("user", content));
    const Prompt prompt(model, messages, question.opening);
    const std::size_t cut = asking == Asking::kSeen ? 0 : prompt.place_of(content) + ahead;
    AskedPrompt asked;
    if (prompts.empty()) {
      asked.read_text = prompt.text().substr(0, cut);
      asked.before = prompt.tokens(0, cut);
    } else if (prompt.text().compare(0, cut, prompts.front().read_text) != 0) {
      fail_argument(
          "evaluation: the model's chat template writes a text otherwise for each question");
    } else {
      asked.read_text = prompts.front().read_text;
      asked.before = prompts.front().before;
    }
    asked.after = prompt.tokens(cut, prompt.text().size());
    prompts.push_back(std::move(asked));
  }
  return prompts;
}

std::vector<Answer> ask_questions(const TextModel& model, const Reading& reading,
                                  const AskingOptions& options) {
  const std::vector<AskedPrompt> prompts = asked_prompts(model, reading, options.asking);
  EngineConfig config = eval_engine(model.base, options.eviction, options.total_tokens);
  config.end_token_ids = model.end_token_ids;
  const bool forks = options.asking == Asking::kUnseen && prompts.size() > 1;
  const int64_t sequences = forks ? 2 : 1;
  config.max_blocks *= sequences;
  Engine engine(model.base.model, config, text_streams(*model.tokenizer));
  std::vector<Answer> answers =
      options.asking == Asking::kInTurn
          ? ask_in_turn(engine, model, reading, prompts.front(), options.answer_tokens)
          : ask_apart(engine, prompts, options.answer_tokens);
  for (Answer& answer : answers) answer.kv.bytes_bound = engine.cache().bytes_bound() / sequences;
  return answers;
}

Json cache_fields(const KvUsage& usage) {
  return {{"kept_entries", usage.kept_entries},
          {"evicted_entries", usage.evicted_entries},
          {"peak_entries", usage.peak_entries},
          {"bytes_peak", usage.bytes_peak},
          {"bytes_bound", usage.bytes_bound}};
}

}  // namespace coppice
