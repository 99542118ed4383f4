// Made-up facts to hide in a text, each with a question and the answers that count.
//
// Words, names and wordings are none of those that gates are trained with (tools/data/facts.py;
// a test compares the words), so that recall is measured on facts of a new sort.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coppice/core/rng.h"

namespace coppice {

struct Needle {
  std::string kind;
  std::string statement;                 // a sentence that tells the fact
  std::vector<std::string> distractors;  // sentences of the same form about something else
  std::string question;
  std::vector<std::string> answers;  // any of them counts; the first is the plain one
};

// In the order in which trials take turns: single facts of several kinds, then facts among others
// of the same form, told apart by their key alone.
std::span<const std::string_view> needle_kinds();

// A fact of needle_kinds()[kind % their number]. `taken` holds the keys (cities, people, companies)
// that stand in the same text; those drawn are added.
Needle draw_needle(int64_t kind, Rng& rng, std::set<std::string>& taken);

// Whether `text` holds one of the answers as it stands, not inside a longer word or number. Capital
// letters count as small ones.
bool contains_answer(std::string_view text, std::span<const std::string> answers);

// Every word that stands in for something in a statement: for the test against training.
std::vector<std::string_view> needle_words();

}  // namespace coppice
