#include "coppice/processor/tokenizer.h"

#include <utility>

#include "coppice/core/error.h"
#include "coppice/processor/tokenizer_model.h"

namespace coppice {
namespace {

std::optional<int32_t> known(int32_t id) {
  return id >= 0 ? std::optional<int32_t>(id) : std::nullopt;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerModel> model) : model_(std::move(model)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  std::string text;
  StreamDecoder decoder(*model_, options);
  for (const int32_t id : ids) decoder.push(id, text);
  text += decoder.flush();
  return text;
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(model_->tokens.size()); }
std::optional<int32_t> Tokenizer::bos_id() const { return known(model_->bos); }
std::optional<int32_t> Tokenizer::eos_id() const { return known(model_->eos); }
std::optional<int32_t> Tokenizer::unk_id() const { return known(model_->unk); }
std::optional<int32_t> Tokenizer::pad_id() const { return known(model_->pad); }
const std::vector<int32_t>& Tokenizer::end_ids() const { return model_->ends; }

bool Tokenizer::adds_bos() const {
  return model_->bos >= 0 && !model_->prefix.empty() && model_->prefix.back() == model_->bos;
}

bool Tokenizer::is_special(int32_t id) const { return model_->is_special(id); }

const std::string& Tokenizer::token_text(int32_t id) const {
  if (!model_->has(id)) {
    fail_argument("no token has the id {}; expected 0 to {}", id, vocab_size() - 1);
  }
  return model_->tokens[static_cast<size_t>(id)].text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (!model_->has(id)) return {};
  return model_->tokens[static_cast<size_t>(id)].bytes;
}

std::optional<int32_t> Tokenizer::find_token(std::string_view text) const {
  const auto found = model_->by_text.find(text);
  return found == model_->by_text.end() ? std::nullopt : std::optional(found->second);
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, const DecodeOptions& options)
    : StreamDecoder(*tokenizer.model_, options) {}

StreamDecoder::StreamDecoder(const TokenizerModel& model, const DecodeOptions& options)
    : model_(&model), options_(options) {}

std::string StreamDecoder::push(int32_t id) {
  std::string out;
  push(id, out);
  return out;
}

void StreamDecoder::push(int32_t id, std::string& out) {
  if (!model_->has(id) || (options_.skip_special && model_->is_special(id))) return;
  std::string_view bytes = model_->tokens[static_cast<size_t>(id)].bytes;
  if (bytes.empty()) return;
  if (std::exchange(at_start_, false) && model_->strip_leading_space &&
      options_.strip_leading_space && bytes[0] == ' ') {
    bytes.remove_prefix(1);
  }
  assembler_.push(bytes, out);
}

std::string StreamDecoder::flush() {
  std::string out;
  assembler_.flush(out);
  at_start_ = true;
  return out;
}

}  // namespace coppice
