#include "coppice/eval/needles.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "coppice/core/error.h"

namespace coppice {
namespace {

using Words = std::span<const std::string_view>;

constexpr std::string_view kCities[] = {
    "Zagreb",  "Valencia", "Antwerp", "Rotterdam", "Bristol",  "Cardiff",   "Florence",
    "Bilbao",  "Salzburg", "Gdansk",  "Krakow",    "Tangier",  "Mombasa",   "Caracas",
    "Recife",  "Santiago", "Ottawa",  "Winnipeg",  "Portland", "Phoenix",   "Houston",
    "Atlanta", "Brisbane", "Dunedin", "Leipzig",   "Dresden",  "Marseille", "Trieste"};
constexpr std::string_view kFirstNames[] = {
    "Ambrose",  "Beatrix",  "Cedric",   "Dorothea", "Eamon",    "Freya",   "Gideon",  "Hester",
    "Ignatius", "Jocasta",  "Kenelm",   "Leonora",  "Mortimer", "Nerys",   "Osbert",  "Philippa",
    "Quentin",  "Rosalind", "Silvanus", "Tabitha",  "Ulysses",  "Venetia", "Wilfred", "Zelda"};
constexpr std::string_view kSurnames[] = {
    "Ashdown",  "Blackwood", "Cartwright", "Davenport", "Eastlake", "Fairfax",   "Goodwin",
    "Hathaway", "Ironside",  "Kingsley",   "Lockhart",  "Merriman", "Pemberton", "Radcliffe",
    "Stanhope", "Tremaine",  "Underhill",  "Wetherby",  "Yardley",  "Winslow"};
constexpr std::string_view kCompanies[] = {
    "Alder Society",   "Hazel Guild",   "Larch Council",  "Rowan League",  "Sorrel Circle",
    "Teasel Club",     "Yarrow Guild",  "Bracken League", "Heather Club",  "Bramble Society",
    "Thistle Council", "Cypress Order", "Lupin Circle",   "Foxglove Order"};
constexpr std::string_view kWatchwords[] = {
    "obelisk",  "nutmeg",    "saffron", "thimble",   "pelican",   "quartz",    "walnut",
    "hyacinth", "driftwood", "gondola", "lagoon",    "marzipan",  "cinnamon",  "partridge",
    "sapphire", "windmill",  "parsnip", "cathedral", "avalanche", "tambourine"};
constexpr std::string_view kColours[] = {"scarlet", "violet", "amber", "ivory", "indigo",
                                         "maroon",  "beige",  "teal",  "lilac", "magenta"};
constexpr std::string_view kInstruments[] = {"cello", "flute", "oboe",      "harp",     "bassoon",
                                             "tuba",  "banjo", "accordion", "mandolin", "zither"};
constexpr std::string_view kMonths[] = {"January",   "February", "March",    "April",
                                        "May",       "June",     "July",     "August",
                                        "September", "October",  "November", "December"};

// What is told of a key: "the {relation} of {key} is {value}". Small models find again what a
// question asks in the words in which it was told; of anything freer they know little even with
// the full cache.
constexpr std::string_view kFigure[] = {"registration number", "census figure", "survey number"};
constexpr std::string_view kWatchword[] = {"watchword", "countersign", "motto"};
constexpr std::string_view kColour[] = {"cloak colour", "banner colour"};
constexpr std::string_view kDate[] = {"assembly date", "founding date"};
constexpr std::string_view kCabin[] = {"cabin number", "ticket number"};
constexpr std::string_view kInstrument[] = {"main instrument", "chosen instrument"};

constexpr std::string_view kTold[] = {
    "Note that the {} of {} is {}.", "As all the town knows, the {} of {} is {}.",
    "It was written down that the {} of {} is {}.", "Let it be known that the {} of {} is {}.",
    "According to the records, the {} of {} is {}."};
constexpr const char* kAsked = "What is the {} of {}?";

constexpr std::string_view kKinds[] = {"figure",
                                       "watchword",
                                       "colour",
                                       "date",
                                       "cabin",
                                       "instrument",
                                       "figure-of-several",
                                       "watchword-of-several"};
constexpr int64_t kDistractors = 3;

std::string_view pick(Rng& rng, Words words) { return words[rng.below(words.size())]; }

// A key not taken yet, which it now is.
template <typename Draw>
std::string fresh(std::set<std::string>& taken, Draw draw) {
  constexpr int kTries = 10'000;
  for (int i = 0; i < kTries; ++i) {
    std::string key = draw();
    if (taken.insert(key).second) return key;
  }
  fail_argument("needles: too many of one kind in one text");
}

std::string draw_person(Rng& rng) {
  const std::string_view first = pick(rng, kFirstNames);
  return fmt::format("{} {}", first, pick(rng, kSurnames));
}

std::string number(Rng& rng, uint64_t low, uint64_t high) {
  return fmt::format("{}", low + rng.below(high - low + 1));
}

// The ways in which a date is told.
std::vector<std::string> draw_date(Rng& rng) {
  const uint64_t day = 4 + rng.below(17);  // 4 to 20: all end on "th"
  const std::string_view month = pick(rng, kMonths);
  return {fmt::format("{} {}", day, month),      fmt::format("{} {}", month, day),
          fmt::format("{}th {}", day, month),    fmt::format("{} {}th", month, day),
          fmt::format("{}th of {}", day, month), fmt::format("{} of {}", day, month)};
}

// The fact and `others` of its form with other keys and other answers.
template <typename Key, typename Answer>
Needle make(Rng& rng, std::set<std::string>& taken, Words relations, int64_t others, Key key,
            Answer answer) {
  const std::string_view relation = pick(rng, relations), form = pick(rng, kTold);
  const auto tell = [&](const std::string& about, const std::string& value) {
    return fmt::format(fmt::runtime(form), relation, about, value);
  };
  Needle needle;
  const std::string about = fresh(taken, key);
  needle.answers = answer();
  needle.statement = tell(about, needle.answers.front());
  needle.question = fmt::format(fmt::runtime(kAsked), relation, about);
  std::set<std::string> told = {needle.answers.front()};
  for (int64_t i = 0; i < others; ++i) {
    const std::string other = fresh(taken, key);
    const std::string value = fresh(told, [&] { return answer().front(); });
    needle.distractors.push_back(tell(other, value));
  }
  return needle;
}

bool is_word(char c) {
  const auto u = static_cast<unsigned char>(c);
  return (u >= '0' && u <= '9') || (u >= 'a' && u <= 'z') || u >= 0x80;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

}  // namespace

std::span<const std::string_view> needle_kinds() { return kKinds; }

Needle draw_needle(int64_t kind, Rng& rng, std::set<std::string>& taken) {
  using Answers = std::vector<std::string>;
  const auto index = static_cast<std::size_t>(kind) % std::size(kKinds);
  const auto city = [&] { return std::string(pick(rng, kCities)); };
  const auto company = [&] { return fmt::format("the {}", pick(rng, kCompanies)); };
  const auto person = [&] { return draw_person(rng); };
  const auto word_of = [&](Words words) {
    return [&rng, words] { return Answers{std::string(pick(rng, words))}; };
  };
  const auto figure = [&] { return Answers{number(rng, 10'000, 99'999)}; };
  const auto cabin = [&] { return Answers{number(rng, 100, 999)}; };
  const auto date = [&] { return draw_date(rng); };
  Needle needle;
  switch (index) {
    case 0:
      needle = make(rng, taken, kFigure, 0, city, figure);
      break;
    case 1:
      needle = make(rng, taken, kWatchword, 0, company, word_of(kWatchwords));
      break;
    case 2:
      needle = make(rng, taken, kColour, 0, person, word_of(kColours));
      break;
    case 3:
      needle = make(rng, taken, kDate, 0, company, date);
      break;
    case 4:
      needle = make(rng, taken, kCabin, 0, person, cabin);
      break;
    case 5:
      needle = make(rng, taken, kInstrument, 0, person, word_of(kInstruments));
      break;
    case 6:
      needle = make(rng, taken, kFigure, kDistractors, city, figure);
      break;
    default:
      needle = make(rng, taken, kWatchword, kDistractors, company, word_of(kWatchwords));
  }
  needle.kind = kKinds[index];
  return needle;
}

bool contains_answer(std::string_view text, std::span<const std::string> answers) {
  const std::string where = lower(text);
  return std::ranges::any_of(answers, [&](const std::string& answer) {
    const std::string what = lower(answer);
    for (std::size_t at = where.find(what); at != std::string::npos;
         at = where.find(what, at + 1)) {
      const std::size_t end = at + what.size();
      const bool begins = at == 0 || !is_word(where[at - 1]);
      if (begins && (end == where.size() || !is_word(where[end]))) return true;
    }
    return false;
  });
}

std::vector<std::string_view> needle_words() {
  std::vector<std::string_view> all;
  for (const Words words : {Words(kCities), Words(kFirstNames), Words(kSurnames), Words(kCompanies),
                            Words(kWatchwords), Words(kColours), Words(kInstruments)})
    all.insert(all.end(), words.begin(), words.end());
  return all;
}

}  // namespace coppice
