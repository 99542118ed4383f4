#include "coppice/processor/tokenizer_model.h"

#include <algorithm>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/processor/unicode.h"

namespace coppice {
namespace {

// Control tokens that end a turn or a text in the families whose templates use them.
constexpr std::string_view kEndNames[] = {"<|im_end|>",    "<|eot_id|>",      "<|eom_id|>",
                                          "<|endoftext|>", "<|end_of_text|>", "</s>",
                                          "<|end|>",       "<end_of_turn>",   "<eos>"};

// GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up.
struct ByteAlphabet {
  std::array<int16_t, 0x200> byte_of{};

  ByteAlphabet() {
    byte_of.fill(-1);
    int16_t next = 0x100;
    for (int16_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      byte_of[static_cast<size_t>(printable ? b : next++)] = b;
    }
  }
};

}  // namespace

std::string bytes_of_byte_level(std::string_view text) {
  static const ByteAlphabet alphabet;
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const int n = utf8_sequence(text.substr(at, 4));
    if (n <= 0) return std::string(text);
    const uint32_t c = code_point_at(text, at).value;
    if (c >= alphabet.byte_of.size() || alphabet.byte_of[c] < 0) return std::string(text);
    bytes.push_back(static_cast<char>(alphabet.byte_of[c]));
    at += static_cast<size_t>(n);
  }
  return bytes;
}

void TokenizerModel::add_token(int64_t id, TokenEntry entry) {
  if (id < 0 || id >= static_cast<int64_t>(kMaxTokens)) {
    fail_argument("the token \"{}\" has the id {}; expected 0 to {}", entry.text, id,
                  kMaxTokens - 1);
  }
  const auto at = static_cast<size_t>(id);
  if (at >= tokens.size()) tokens.resize(at + 1);
  TokenEntry& place = tokens[at];
  if (!place.text.empty() && place.text != entry.text) {
    fail_argument("the id {} stands for two tokens, \"{}\" and \"{}\"", id, place.text, entry.text);
  }
  by_text.try_emplace(entry.text, static_cast<int32_t>(id));
  place = std::move(entry);
}

void TokenizerModel::add_added(const AddedToken& token) {
  if (!token.normalized || normalizer.empty()) {
    added.add(token, token.content);
  } else {
    added_normalized.add(token, normalizer.apply(replace_invalid_utf8(token.content)));
  }
}

void TokenizerModel::add_merge(std::string_view left, std::string_view right, uint32_t rank) {
  const auto id_of = [&](std::string_view text) {
    const auto found = by_text.find(text);
    if (found == by_text.end()) {
      fail_argument("merge {} of \"{}\" and \"{}\": \"{}\" is not in the vocabulary", rank, left,
                    right, text);
    }
    return found->second;
  };
  const int32_t a = id_of(left);
  const int32_t b = id_of(right);
  const int32_t merged = id_of(std::string(left).append(right));
  if (!is_special(merged)) add_merge(a, b, {rank, merged});
}

void TokenizerModel::add_merge(int32_t left, int32_t right, MergeTable::Merge merge) {
  merges.add(left, right, merge);
  if (byte_level) return;
  const TokenEntry& a = tokens[static_cast<size_t>(left)];
  const TokenEntry& b = tokens[static_cast<size_t>(right)];
  if (a.kind == TokenKind::kByte || b.kind == TokenKind::kByte || !is_valid_utf8(a.text) ||
      !is_valid_utf8(b.text)) {
    cut_words = false;
    return;
  }
  size_t last = a.text.size() - 1;
  while ((static_cast<uint8_t>(a.text[last]) & 0xC0) == 0x80) --last;
  junctions.insert(junction(code_point_at(a.text, last).value, code_point_at(b.text, 0).value));
}

void TokenizerModel::finish() {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const TokenEntry& token = tokens[i];
    if (token.kind == TokenKind::kByte || (byte_level && token.kind == TokenKind::kNormal)) {
      if (token.bytes.size() != 1) continue;
      int32_t& place = byte_ids[static_cast<uint8_t>(token.bytes[0])];
      if (place < 0) place = id;
    } else if (token.kind == TokenKind::kNormal && !token.text.empty() &&
               utf8_sequence(token.text) == static_cast<int>(token.text.size())) {
      char_ids.try_emplace(code_point_at(token.text, 0).value, id);
    }
  }
  if (eos >= 0) ends.push_back(eos);
  for (const std::string_view name : kEndNames) {
    const auto found = by_text.find(name);
    if (found != by_text.end() && is_special(found->second)) ends.push_back(found->second);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
}

}  // namespace coppice
