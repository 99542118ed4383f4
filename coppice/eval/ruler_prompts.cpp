#include "coppice/eval/ruler_prompts.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "coppice/core/error.h"
#include "coppice/eval/needles.h"

namespace coppice {
namespace {

constexpr std::string_view kKinds[] = {"single",    "multi-key",    "multi-value",   "multi-query",
                                       "variables", "common-words", "frequent-words"};
constexpr int64_t kAnswerTokens[] = {24, 24, 72, 72, 48, 72, 32};

constexpr std::string_view kPlaces[] = {"cellar",  "chapel",  "cottage",    "dairy",    "foundry",
                                        "granary", "harbour", "lighthouse", "orchard",  "quarry",
                                        "sawmill", "stable",  "tannery",    "vineyard", "workshop"};
constexpr std::string_view kSides[] = {"northern", "southern", "old", "new",    "upper", "lower",
                                       "smaller",  "larger",   "red", "yellow", "stone", "wooden"};
constexpr std::string_view kNumbers[] = {"storage number", "permit number", "ledger number",
                                         "key number"};
constexpr std::string_view kTold[] = {"The {} of the {} is {}.",
                                      "By the way, the {} of the {} is {}.",
                                      "Whoever asks should hear that the {} of the {} is {}.",
                                      "It should not be forgotten that the {} of the {} is {}.",
                                      "An old list says that the {} of the {} is {}."};
constexpr std::string_view kCopied[] = {"Let {} be equal to {}.", "The variable {} is set to {}.",
                                        "Now {} has the value of {}."};

constexpr std::size_t kCommon = 10, kFrequent = 3, kMadeUp = 40, kVariables = 5;
constexpr int kCommonTimes = 30, kOtherTimes = 3;
constexpr std::size_t kMostWords = 20'000;

std::string_view pick(Rng& rng, std::span<const std::string_view> words) {
  return words[rng.below(words.size())];
}

template <typename T>
void shuffle(std::vector<T>& items, Rng& rng) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[rng.below(i)]);
}

// Three consonants, each with a vowel.
std::string made_up(Rng& rng, int syllables) {
  constexpr std::string_view kConsonants = "bdfgklmnprstvz", kVowels = "aeiou";
  std::string word;
  for (int i = 0; i < syllables; ++i) {
    word += kConsonants[rng.below(kConsonants.size())];
    word += kVowels[rng.below(kVowels.size())];
  }
  return word;
}

template <typename Draw>
std::vector<std::string> distinct(std::size_t count, Draw draw) {
  std::vector<std::string> all;
  while (all.size() < count)
    if (std::string one = draw(); std::ranges::count(all, one) == 0) all.push_back(std::move(one));
  return all;
}

std::vector<double> depths(std::size_t count, Rng& rng) {
  std::vector<double> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(rng.uniform());
  std::ranges::sort(all);
  return all;
}

// Different words of 4 to 9 small letters, as the text has them from a sentence on.
std::vector<std::string> words_of(const Haystack& haystack, int64_t first) {
  std::set<std::string> seen;
  std::vector<std::string> words;
  for (int64_t i = 0; i < haystack.size() && words.size() < kMostWords; ++i) {
    std::string word;
    const std::string sentence = std::string(haystack.sentence(first + i)) + " ";
    for (const char c : sentence) {
      if (std::isalpha(static_cast<unsigned char>(c)) != 0 || static_cast<signed char>(c) < 0) {
        word += c;
        continue;
      }
      const bool plain = std::ranges::all_of(word, [](char x) { return x >= 'a' && x <= 'z'; });
      if (plain && word.size() >= 4 && word.size() <= 9 && seen.insert(word).second)
        words.push_back(word);
      word.clear();
    }
  }
  return words;
}

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  return fmt::format("{}", fmt::join(words, between));
}

RulerPrompt list_prompt(std::string passage, std::string question, std::string opening,
                        std::vector<std::string> references) {
  RulerPrompt prompt;
  prompt.reading.passage = std::move(passage);
  prompt.reading.questions = {{.text = std::move(question), .opening = std::move(opening)}};
  prompt.references = std::move(references);
  return prompt;
}

std::size_t index_of(std::string_view kind) {
  const auto place = static_cast<std::size_t>(std::ranges::find(kKinds, kind) - kKinds);
  if (place == std::size(kKinds))
    fail_argument("ruler: a kind is one of {}, got \"{}\"", fmt::join(kKinds, ", "), kind);
  return place;
}

}  // namespace

std::span<const std::string_view> ruler_kinds() { return kKinds; }

int64_t ruler_answer_tokens(std::string_view kind) { return kAnswerTokens[index_of(kind)]; }

double ruler_score(std::string_view answer, std::span<const std::string> references) {
  int64_t found = 0;
  for (const std::string& reference : references)
    if (contains_answer(answer, std::span(&reference, 1))) ++found;
  return static_cast<double>(found) / static_cast<double>(references.size());
}

RulerDraw::RulerDraw(std::string_view kind, uint64_t seed, Haystack& haystack,
                     const Tokenizer& tokenizer)
    : kind_(kKinds[index_of(kind)]), seed_(seed), haystack_(haystack), tokenizer_(tokenizer) {
  Rng rng(seed);
  first_ = static_cast<int64_t>(rng.below(static_cast<uint64_t>(haystack.size())));
  if (kind_ == "common-words") {
    words_ = words_of(haystack, first_);
    if (words_.size() < 2 * kCommon)
      fail_argument("ruler: the text has {} words for a list, expected at least {}", words_.size(),
                    2 * kCommon);
    shuffle(words_, rng);
  } else if (kind_ == "frequent-words") {
    words_ = distinct(kMadeUp, [&] { return made_up(rng, 3); });
  } else if (kind_ == "variables") {
    draw_variables(rng);
  } else {
    draw_needles(rng);
  }
}

void RulerDraw::draw_needles(Rng& rng) {
  const bool many_keys = kind_ == "multi-key" || kind_ == "multi-query";
  const bool many_values = kind_ == "multi-value";
  const std::string_view number = pick(rng, kNumbers), form = pick(rng, kTold);
  const std::vector<std::string> keys = distinct(many_keys ? 4 : 1, [&] {
    const std::string_view side = pick(rng, kSides);
    return fmt::format("{} {}", side, pick(rng, kPlaces));
  });
  const std::vector<std::string> values = distinct(many_keys || many_values ? 4 : 1, [&] {
    return fmt::format("{}", 1'000'000 + rng.below(9'000'000));
  });
  const std::vector<double> places = depths(values.size(), rng);
  for (std::size_t i = 0; i < values.size(); ++i)
    planted_.push_back(
        {.sentence = fmt::format(fmt::runtime(form), number, keys[many_keys ? i : 0], values[i]),
         .depth = places[i]});
  const std::size_t asked = rng.below(keys.size());
  references_ = kind_ == "multi-key" ? std::vector{values[asked]} : values;
  if (kind_ == "multi-query") {
    std::vector<std::string> named = keys;
    shuffle(named, rng);  // not in the order of the text
    question_ = fmt::format("What are the {}s of the {}, the {}, the {} and the {}?", number,
                            named[0], named[1], named[2], named[3]);
    opening_ = fmt::format("The {} of the {} is", number, named[0]);
  } else if (many_values) {
    question_ = fmt::format("What are all the {}s of the {}?", number, keys[0]);
    opening_ = fmt::format("The {}s of the {} are", number, keys[0]);
  } else {
    question_ = fmt::format("What is the {} of the {}?", number, keys[asked]);
    opening_ = fmt::format("The {} of the {} is", number, keys[asked]);
  }
}

void RulerDraw::draw_variables(Rng& rng) {
  references_ = distinct(kVariables, [&] {
    std::string name = made_up(rng, 2);
    for (char& c : name) c = static_cast<char>(c - 'a' + 'A');
    return name;
  });
  const std::string value = fmt::format("{}", 10'000 + rng.below(90'000));
  const std::string_view form = pick(rng, kCopied);
  const std::vector<double> places = depths(kVariables, rng);
  for (std::size_t i = 0; i < kVariables; ++i)
    planted_.push_back({.sentence = fmt::format(fmt::runtime(form), references_[i],
                                                i == 0 ? value : references_[i - 1]),
                        .depth = places[i]});
  question_ =
      fmt::format("Which {} variables have the value {}, set to it or copied?", kVariables, value);
  opening_ = fmt::format("The variables with the value {} are", value);
}

RulerPrompt RulerDraw::prompt(int64_t size) const {
  if (kind_ == "common-words") return common_words(size);
  if (kind_ == "frequent-words") return frequent_words(size);
  return in_text(size);
}

RulerPrompt RulerDraw::in_text(int64_t size) const {
  std::vector<std::string_view> units;
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < size; ++i) {
    units.push_back(haystack_.sentence(first_ + i));
    sizes.push_back(haystack_.tokens(first_ + i, tokenizer_));
  }
  std::vector<double> found;
  return list_prompt(plant(units, sizes, planted_, found), question_, opening_, references_);
}

RulerPrompt RulerDraw::common_words(int64_t size) const {
  Rng rng(mix_seed(seed_, 0xC0, static_cast<uint64_t>(size)));
  std::vector<std::string> list;
  for (std::size_t i = 0; i < kCommon + static_cast<std::size_t>(size); ++i)
    list.insert(list.end(), i < kCommon ? kCommonTimes : kOtherTimes, words_[i]);
  shuffle(list, rng);
  return list_prompt("A list of words, some of which stand in it more often than others: " +
                         joined(list, ", ") + ".",
                     "Which ten words stand in the list most often?",
                     "The ten words that stand in the list most often are",
                     {words_.begin(), words_.begin() + kCommon});
}

RulerPrompt RulerDraw::frequent_words(int64_t size) const {
  Rng rng(mix_seed(seed_, 0xF0, static_cast<uint64_t>(size)));
  double all = 0.0;
  for (std::size_t i = 1; i <= kMadeUp; ++i) all += 1.0 / static_cast<double>(i * i);
  std::vector<std::string> list;
  for (std::size_t i = 0; i < kMadeUp; ++i) {
    const double share = 1.0 / (static_cast<double>((i + 1) * (i + 1)) * all);
    list.insert(list.end(), static_cast<std::size_t>(share * static_cast<double>(size)), words_[i]);
  }
  shuffle(list, rng);
  return list_prompt("A text in a secret language: " + joined(list, " ") + ".",
                     "Which three words stand in the secret text most often?",
                     "The three words that stand in the secret text most often are",
                     {words_.begin(), words_.begin() + kFrequent});
}

int64_t RulerDraw::least() const {
  return kind_ == "common-words"     ? static_cast<int64_t>(kCommon)
         : kind_ == "frequent-words" ? 60
                                     : 1;
}

int64_t RulerDraw::most() const {
  if (kind_ == "common-words") return static_cast<int64_t>(words_.size() - kCommon);
  return kind_ == "frequent-words" ? 1'000'000 : haystack_.size();
}

}  // namespace coppice
