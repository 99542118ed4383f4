// Questions about a text under a KV budget, and the three ways to ask them:
//
//   unseen   the text is read, and evicted down to its budget, before a question exists; every
//            question is asked of a fork of the cache as the text left it, so none sees another
//   seen     each question stands in front of the text too, so that it was read before anything
//            was evicted; then the text, and the question again. Each question reads the text anew
//   in-turn  as unseen, but the questions follow each other in one cache: the answer to one, and
//            all that was evicted on the way, is there when the next is asked
//
// Figures of different ways are of different prompts, and each is compared with the full cache
// asked in the same way.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/engine/request.h"
#include "coppice/eval/eval_task.h"
#include "coppice/processor/chat_template.h"
#include "coppice/processor/tokenizer.h"

namespace coppice {

// A model with its text side. Tokenizer and template must outlive all that is made from it.
struct TextModel {
  EvalModel base;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat = nullptr;
  std::vector<int64_t> end_token_ids;
};

enum class Asking { kUnseen, kSeen, kInTurn };
std::string_view asking_name(Asking asking);  // "unseen", "seen", "in-turn"
// Of names, "both" being unseen and seen; in the order above, nothing twice. Throws
// kInvalidArgument for an unknown name or none.
std::vector<Asking> parse_asking(const std::vector<std::string>& names);

// A text to read, and what is asked about it. The last message of the chat is
// passage + separator + question.
struct Reading {
  OrderedJson history = OrderedJson::array();  // messages before it
  std::string passage;                         // may be empty when there is a history
  std::string separator = "\n\nQuestion: ";
  struct Question {
    std::string text;
    std::string opening = {};  // of the answer, written for the model
  };
  std::vector<Question> questions;
};

// A question's prompt in two parts: eviction comes between them.
struct AskedPrompt {
  std::string read_text;        // what `before` is of
  std::vector<int32_t> before;  // none for kSeen; the same for all questions of a reading
  std::vector<int32_t> after;
  int64_t tokens() const { return static_cast<int64_t>(before.size() + after.size()); }
};

// kInTurn gives the prompts as if each question were the first. Throws kInvalidArgument when the
// chat template does not write a message as it is, or writes what is in front of the question
// otherwise for each question.
std::vector<AskedPrompt> asked_prompts(const TextModel& model, const Reading& reading,
                                       Asking asking);

struct AskingOptions {
  Asking asking = Asking::kUnseen;
  EvictionConfig eviction;
  int64_t answer_tokens = 24;
  int64_t total_tokens = 0;  // the cache of one question sees at most
};

struct Answer {
  std::string text;  // without the opening
  int64_t prompt_tokens = 0;
  bool ended = false;  // of itself, not by answer_tokens
  KvUsage kv;          // when it ended; bytes_bound is of the whole pool
};

// Greedy answers, in the order of the questions. Throws as asked_prompts, and for kInTurn when the
// template rewrites earlier turns.
std::vector<Answer> ask_questions(const TextModel& model, const Reading& reading,
                                  const AskingOptions& options);

// What a row says of the cache: entries kept, evicted and at most, bytes at most and their bound.
Json cache_fields(const KvUsage& usage);

}  // namespace coppice
