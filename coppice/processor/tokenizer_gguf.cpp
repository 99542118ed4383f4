#include <algorithm>
#include <cmath>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/processor/tokenizer_model.h"

namespace coppice {
namespace {

// Values of tokenizer.ggml.token_type.
enum GgufTokenType : int32_t {
  kTypeNormal = 1,
  kTypeUnknown = 2,
  kTypeControl = 3,
  kTypeUser = 4,
  kTypeUnused = 5,
  kTypeByte = 6,
};

// Of a SentencePiece vocabulary, in bytes; real ones stay below 100.
constexpr size_t kLongestPiece = 256;

TokenKind kind_of(int32_t type, size_t id) {
  switch (type) {
    case kTypeNormal:
      return TokenKind::kNormal;
    case kTypeUnknown:
    case kTypeControl:
      return TokenKind::kControl;
    case kTypeUser:
      return TokenKind::kAdded;
    case kTypeUnused:
      return TokenKind::kUnused;
    case kTypeByte:
      return TokenKind::kByte;
    default:
      fail_argument("tokenizer.ggml.token_type: token {} has the type {}; expected 1 to 6", id,
                    type);
  }
}

void check_sizes(const GgufTokenizerFields& fields, bool byte_level) {
  const size_t n = fields.tokens.size();
  if (n == 0) fail_argument("tokenizer.ggml.tokens: empty or missing; expected the vocabulary");
  if (n > TokenizerModel::kMaxTokens) {
    fail_argument("tokenizer.ggml.tokens: {} tokens; expected at most {}", n,
                  TokenizerModel::kMaxTokens);
  }
  if (fields.types.size() != n && !(byte_level && fields.types.empty())) {
    fail_argument("tokenizer.ggml.token_type: {} entries; expected one for each of {} tokens",
                  fields.types.size(), n);
  }
  if (!byte_level && fields.scores.size() != n) {
    fail_argument("tokenizer.ggml.scores: {} entries; expected one for each of {} tokens",
                  fields.scores.size(), n);
  }
  if (byte_level && fields.merges.empty()) {
    fail_argument(
        "tokenizer.ggml.merges: empty or missing; a \"gpt2\" vocabulary needs its merges");
  }
}

int32_t checked_id(const TokenizerModel& model, std::optional<int64_t> id, std::string_view name) {
  if (!id) return -1;
  if (!model.has(*id)) {
    fail_argument("tokenizer.ggml.{}: {}; expected 0 to {}", name, *id, model.tokens.size() - 1);
  }
  return static_cast<int32_t>(*id);
}

// "<0x0A>" as its byte.
std::string byte_of(std::string_view text, size_t id) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  if (text.size() == 6 && text.starts_with("<0x") && text[5] == '>' && digit(text[3]) >= 0 &&
      digit(text[4]) >= 0) {
    return std::string(1, static_cast<char>(digit(text[3]) * 16 + digit(text[4])));
  }
  fail_argument("tokenizer.ggml.tokens: byte token {} is \"{}\"; expected <0x00> to <0xFF>", id,
                text);
}

std::string with_spaces(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text.substr(at).starts_with(kBlankMark)) {
      out += ' ';
      at += kBlankMark.size();
    } else {
      out += text[at++];
    }
  }
  return out;
}

void add_tokens(const GgufTokenizerFields& fields, TokenizerModel& model) {
  for (size_t id = 0; id < fields.tokens.size(); ++id) {
    TokenEntry entry;
    entry.text = fields.tokens[id];
    entry.kind = fields.types.empty() ? TokenKind::kNormal : kind_of(fields.types[id], id);
    switch (entry.kind) {
      case TokenKind::kNormal:
        entry.bytes = model.byte_level ? bytes_of_byte_level(entry.text) : with_spaces(entry.text);
        break;
      case TokenKind::kByte:
        entry.bytes = byte_of(entry.text, id);
        break;
      case TokenKind::kUnused:
        break;
      case TokenKind::kControl:
      case TokenKind::kAdded:
        entry.bytes = entry.text;
        break;
    }
    const bool matched = entry.kind == TokenKind::kControl || entry.kind == TokenKind::kAdded;
    const bool special = entry.kind == TokenKind::kControl;
    model.add_token(static_cast<int64_t>(id), std::move(entry));
    if (matched) {
      model.add_added({fields.tokens[id], static_cast<int32_t>(id), special});
    }
  }
}

void add_listed_merges(const GgufTokenizerFields& fields, TokenizerModel& model) {
  model.merges = MergeTable(fields.merges.size());
  for (size_t rank = 0; rank < fields.merges.size(); ++rank) {
    const std::string_view merge = fields.merges[rank];
    const size_t blank = merge.find(' ', 1);
    if (blank == std::string_view::npos || blank + 1 == merge.size()) {
      fail_argument("tokenizer.ggml.merges: entry {} is \"{}\"; expected two tokens and a blank",
                    rank, merge);
    }
    model.add_merge(merge.substr(0, blank), merge.substr(blank + 1), static_cast<uint32_t>(rank));
  }
}

// A SentencePiece vocabulary lists no merges: any two normal pieces merge whose join is a normal
// piece, best score first. Of equal scores the leftmost merges first, so they share a rank.
void add_scored_merges(const GgufTokenizerFields& fields, TokenizerModel& model) {
  const auto normal = [&](std::string_view text) -> int32_t {
    const auto found = model.by_text.find(text);
    if (found == model.by_text.end()) return -1;
    return model.tokens[static_cast<size_t>(found->second)].kind == TokenKind::kNormal
               ? found->second
               : -1;
  };
  std::vector<int32_t> by_score;
  for (size_t id = 0; id < fields.tokens.size(); ++id) {
    if (std::isnan(fields.scores[id])) {
      fail_argument("tokenizer.ggml.scores: the score of token {} is not a number", id);
    }
    if (normal(fields.tokens[id]) == static_cast<int32_t>(id)) {
      by_score.push_back(static_cast<int32_t>(id));
    }
  }
  const auto score = [&](int32_t id) { return fields.scores[static_cast<size_t>(id)]; };
  std::stable_sort(by_score.begin(), by_score.end(),
                   [&](int32_t a, int32_t b) { return score(a) > score(b); });
  uint32_t rank = 0;
  for (size_t i = 0; i < by_score.size(); ++i) {
    if (i > 0 && score(by_score[i]) != score(by_score[i - 1])) ++rank;
    const std::string_view piece = fields.tokens[static_cast<size_t>(by_score[i])];
    if (piece.size() > kLongestPiece) {
      fail_argument("tokenizer.ggml.tokens: token {} has {} bytes; expected at most {}",
                    by_score[i], piece.size(), kLongestPiece);
    }
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      const int32_t left = normal(piece.substr(0, cut));
      if (left < 0) continue;
      const int32_t right = normal(piece.substr(cut));
      if (right >= 0) model.add_merge(left, right, {rank, by_score[i]});
    }
  }
}

void set_byte_level(const GgufTokenizerFields& fields, TokenizerModel& model) {
  model.pre_tokenizer = PreTokenizer::from_gguf_name(fields.pre);
  const bool llama3 =
      fields.pre == "llama-bpe" || fields.pre == "llama3" || fields.pre == "llama-v3";
  if (fields.pre == "qwen2" || fields.pre == "deepseek-r1-qwen") model.normalizer.add_nfc();
  if (fields.add_space_prefix.value_or(false)) {
    model.prefix_space = TokenizerModel::PrefixSpace::kIfMissing;
  }
  add_tokens(fields, model);
  add_listed_merges(fields, model);
  if (llama3) {
    for (size_t id = 0; id < model.tokens.size(); ++id) {
      const TokenEntry& token = model.tokens[id];
      if (token.kind == TokenKind::kNormal) {
        model.whole_words.try_emplace(token.bytes, static_cast<int32_t>(id));
      }
    }
  }
}

void set_sentencepiece(const GgufTokenizerFields& fields, TokenizerModel& model) {
  model.byte_level = false;
  model.byte_fallback = true;
  model.fuse_unknown = true;
  model.strip_leading_space = fields.add_space_prefix.value_or(true);
  if (model.strip_leading_space) model.normalizer.add_prepend(std::string(kBlankMark));
  model.normalizer.add_replace(" ", std::string(kBlankMark));
  add_tokens(fields, model);
  add_scored_merges(fields, model);
}

}  // namespace

Tokenizer Tokenizer::from_gguf(const GgufTokenizerFields& fields) {
  const bool byte_level = fields.model == "gpt2";
  if (!byte_level && fields.model != "llama") {
    fail_argument("tokenizer.ggml.model: \"{}\" is not supported; expected gpt2 or llama",
                  fields.model);
  }
  check_sizes(fields, byte_level);
  auto model = std::make_unique<TokenizerModel>();
  if (byte_level) {
    set_byte_level(fields, *model);
  } else {
    set_sentencepiece(fields, *model);
  }
  model->bos = checked_id(*model, fields.bos_id, "bos_token_id");
  model->eos = checked_id(*model, fields.eos_id, "eos_token_id");
  model->unk = checked_id(*model, fields.unk_id, "unknown_token_id");
  model->pad = checked_id(*model, fields.pad_id, "padding_token_id");
  for (const auto& [id, name] :
       {std::pair(fields.eot_id, "eot_token_id"), std::pair(fields.eom_id, "eom_token_id")}) {
    if (id) model->ends.push_back(checked_id(*model, id, name));
  }
  if (!byte_level) model->unknown_symbol = model->unk;
  // Llama vocabularies of both kinds start a text with their begin token; the others do not.
  const bool bos_by_default = !byte_level || !model->whole_words.empty();
  if (model->bos >= 0 && fields.add_bos.value_or(bos_by_default)) model->prefix = {model->bos};
  if (model->eos >= 0 && fields.add_eos.value_or(false)) model->suffix = {model->eos};
  model->finish();
  return Tokenizer(std::move(model));
}

}  // namespace coppice
