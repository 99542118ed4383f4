#include <algorithm>
#include <bit>
#include <cstring>

#include "coppice/core/error.h"
#include "coppice/processor/tokenizer_model.h"

namespace coppice {
namespace {

using PrefixSpace = TokenizerModel::PrefixSpace;

// Words already merged in this call, as places in the output. Direct-mapped: bounded, no eviction.
class WordCache {
 public:
  explicit WordCache(size_t text_bytes)
      : slots_(std::clamp<size_t>(std::bit_ceil(text_bytes / 8 + 1), 16, 1 << 14)) {}

  static bool fits(std::string_view word) { return word.size() <= kWordBytes; }

  struct Slot {
    char word[24];
    uint32_t bytes = 0;  // 0: empty
    uint32_t count = 0;  // of ids
    size_t at = 0;       // where they start in the output
    bool holds(std::string_view other) const {
      return bytes == other.size() && std::memcmp(word, other.data(), bytes) == 0;
    }
  };
  // REQUIRES: fits(word).
  Slot& slot(std::string_view word) {
    return slots_[std::hash<std::string_view>{}(word) & (slots_.size() - 1)];
  }

 private:
  static constexpr size_t kWordBytes = sizeof(Slot::word);
  std::vector<Slot> slots_;
};

// One call of encode().
class Encoder {
 public:
  Encoder(const TokenizerModel& model, size_t text_bytes, std::vector<int32_t>& ids)
      : model_(model), cache_(text_bytes), ids_(ids) {}

  void run(std::string_view text, const EncodeOptions& options, std::span<const TextRange> plain) {
    std::vector<AddedTokens::Piece> pieces;
    model_.added.split(text, plain, options.parse_special, pieces);
    for (const auto& piece : pieces) {
      if (piece.id >= 0) {
        ids_.push_back(piece.id);
      } else {
        normalized(text.substr(piece.begin, piece.end - piece.begin), piece.begin, options, plain);
      }
    }
  }

 private:
  void normalized(std::string_view raw, size_t begin, const EncodeOptions& options,
                  std::span<const TextRange> plain) {
    std::string owned;
    std::string_view text = raw;
    if (model_.added_normalized.empty()) {
      if (!model_.normalizer.empty()) text = owned = model_.normalizer.apply(raw);
      words_of(text, begin == 0);
      return;
    }
    std::vector<TextRange> inside = clip(plain, begin, begin + raw.size());
    text = owned = model_.normalizer.apply(raw, inside);
    std::vector<AddedTokens::Piece> pieces;
    model_.added_normalized.split(text, inside, options.parse_special, pieces);
    for (const auto& piece : pieces) {
      if (piece.id >= 0) {
        ids_.push_back(piece.id);
      } else {
        words_of(text.substr(piece.begin, piece.end - piece.begin), begin + piece.begin == 0);
      }
    }
  }

  // The parts of the ranges in [begin, end), counted from `begin`.
  static std::vector<TextRange> clip(std::span<const TextRange> ranges, size_t begin, size_t end) {
    const auto b = static_cast<int64_t>(begin);
    const auto e = static_cast<int64_t>(end);
    auto it = std::partition_point(ranges.begin(), ranges.end(),
                                   [&](const TextRange& r) { return r.end <= b; });
    std::vector<TextRange> inside;
    for (; it != ranges.end() && it->begin < e; ++it) {
      inside.push_back({std::max(it->begin, b) - b, std::min(it->end, e) - b});
    }
    return inside;
  }

  void words_of(std::string_view text, bool first) {
    std::string owned;
    if (model_.mark_blanks || model_.prefix_space != PrefixSpace::kNever) {
      text = owned = with_blanks(text, first);
    }
    model_.pre_tokenizer.split(text, ends_);
    size_t begin = 0;
    for (const size_t end : ends_) {
      word_or_marked(text.substr(begin, end - begin));
      begin = end;
    }
  }

  std::string with_blanks(std::string_view text, bool first) const {
    std::string out;
    const bool plain_blank = model_.prefix_space == PrefixSpace::kIfMissing;
    const std::string_view blank = plain_blank ? std::string_view(" ") : kBlankMark;
    const bool wanted = model_.prefix_space != PrefixSpace::kNever &&
                        (model_.prefix_space != PrefixSpace::kMarkFirstIfMissing || first);
    const bool there = text.starts_with(blank) || (model_.mark_blanks && text.starts_with(' '));
    if (wanted && !there) out += blank;
    for (const char c : text) {
      if (c == ' ' && model_.mark_blanks) {
        out += kBlankMark;
      } else {
        out += c;
      }
    }
    return out;
  }

  void word_or_marked(std::string_view piece) {
    while (model_.split_marks) {
      const size_t mark = piece.find(kBlankMark, 1);
      if (mark == std::string_view::npos) break;
      word(piece.substr(0, mark));
      piece.remove_prefix(mark);
    }
    cut_word(piece);
  }

  // Cuts where no merge crosses. Two characters outside the vocabulary stay together: they may have
  // to become one unknown token.
  void cut_word(std::string_view text) {
    if (model_.byte_level || !model_.cut_words || !model_.whole_words.empty()) return word(text);
    size_t begin = 0;
    uint32_t last = 0;
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = code_point_at(text, at);
      if (at > begin && !model_.junctions.contains(TokenizerModel::junction(last, c.value)) &&
          (model_.char_ids.contains(last) || model_.char_ids.contains(c.value))) {
        word(text.substr(begin, at - begin));
        begin = at;
      }
      last = c.value;
      at += c.bytes;
    }
    if (begin < text.size()) word(text.substr(begin));
  }

  void word(std::string_view text) {
    if (!model_.whole_words.empty()) {
      const auto whole = model_.whole_words.find(text);
      if (whole != model_.whole_words.end()) {
        ids_.push_back(whole->second);
        return;
      }
    }
    if (!WordCache::fits(text)) return merge(text);
    WordCache::Slot& slot = cache_.slot(text);
    if (slot.holds(text)) {
      const size_t old = ids_.size();
      ids_.resize(old + slot.count);
      std::copy_n(ids_.begin() + static_cast<std::ptrdiff_t>(slot.at), slot.count,
                  ids_.begin() + static_cast<std::ptrdiff_t>(old));
      return;
    }
    const size_t at = ids_.size();
    merge(text);
    std::memcpy(slot.word, text.data(), text.size());
    slot.bytes = static_cast<uint32_t>(text.size());
    slot.count = static_cast<uint32_t>(ids_.size() - at);
    slot.at = at;
  }

  void merge(std::string_view text) {
    symbols_.clear();
    if (model_.byte_level) {
      byte_symbols(text);
    } else {
      character_symbols(text);
    }
    merge_symbols(model_.merges, symbols_);
    ids_.insert(ids_.end(), symbols_.begin(), symbols_.end());
  }

  void byte_symbols(std::string_view text) {
    bool fusing = false;
    for (const char c : text) {
      const int32_t id = model_.byte_ids[static_cast<uint8_t>(c)];
      if (id >= 0) {
        symbols_.push_back(id);
        fusing = false;
      } else {
        unknown(fusing);
      }
    }
  }

  void character_symbols(std::string_view text) {
    bool fusing = false;
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = code_point_at(text, at);
      const std::string_view bytes = text.substr(at, c.bytes);
      at += c.bytes;
      const auto found = model_.char_ids.find(c.value);
      if (found != model_.char_ids.end()) {
        symbols_.push_back(found->second);
        fusing = false;
      } else if (model_.byte_fallback && std::ranges::all_of(bytes, [&](char b) {
                   return model_.byte_ids[static_cast<uint8_t>(b)] >= 0;
                 })) {
        for (const char b : bytes) symbols_.push_back(model_.byte_ids[static_cast<uint8_t>(b)]);
        fusing = false;
      } else {
        unknown(fusing);
      }
    }
  }

  void unknown(bool& fusing) {
    if (model_.unknown_symbol >= 0 && !(fusing && model_.fuse_unknown)) {
      symbols_.push_back(model_.unknown_symbol);
    }
    fusing = true;
  }

  const TokenizerModel& model_;
  WordCache cache_;
  std::vector<int32_t>& ids_;
  std::vector<size_t> ends_;
  std::vector<int32_t> symbols_;
};

void check_ranges(std::string_view text, std::span<const TextRange> ranges) {
  int64_t last = 0;
  for (const TextRange& range : ranges) {
    if (range.begin < last || range.end < range.begin ||
        range.end > static_cast<int64_t>(text.size())) {
      fail_argument(
          "plain range [{}, {}) of a text of {} bytes: expected ascending ranges inside it",
          range.begin, range.end, text.size());
    }
    last = range.end;
  }
}

// Valid UTF-8 in place of `text`, and the ranges that follow it there.
std::string made_valid(std::string_view text, std::vector<TextRange>& ranges) {
  std::string out;
  size_t range = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const int n = utf8_sequence(text.substr(at, 4));
    const size_t bytes = n > 0   ? static_cast<size_t>(n)
                         : n < 0 ? static_cast<size_t>(-n)
                                 : text.size() - at;
    const size_t out_begin = out.size();
    out.append(n > 0 ? text.substr(at, bytes) : kReplacementCharacter);
    at += bytes;
    // A boundary inside an ill-formed part moves to its start or, for the end of a range, its end.
    while (range < ranges.size()) {
      TextRange& r = ranges[range];
      if (!inside && r.begin < static_cast<int64_t>(at)) {
        inside = true;
        r.begin = static_cast<int64_t>(out_begin);
      }
      if (!inside || r.end > static_cast<int64_t>(at)) break;
      r.end = static_cast<int64_t>(out.size());
      inside = false;
      ++range;
    }
  }
  for (; range < ranges.size(); ++range) {  // empty ranges at the end
    ranges[range] = {static_cast<int64_t>(out.size()), static_cast<int64_t>(out.size())};
  }
  return out;
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options,
                                       std::span<const TextRange> plain) const {
  check_ranges(text, plain);
  std::string valid;
  std::vector<TextRange> moved;
  if (!is_valid_utf8(text)) {
    moved.assign(plain.begin(), plain.end());
    text = valid = made_valid(text, moved);
    plain = moved;
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (options.add_special) ids = model_->prefix;
  const size_t added = ids.size();
  Encoder(*model_, text.size(), ids).run(text, options, plain);
  if (options.add_special) {
    // A text that brings its own begin token keeps that one alone.
    if (model_->bos >= 0 && added > 0 && ids.size() > added && ids[added - 1] == model_->bos &&
        ids[added] == model_->bos) {
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(added) - 1);
    }
    ids.insert(ids.end(), model_->suffix.begin(), model_->suffix.end());
  }
  return ids;
}

}  // namespace coppice
