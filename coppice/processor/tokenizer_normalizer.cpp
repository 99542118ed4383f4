#include "coppice/processor/tokenizer_normalizer.h"

#include <algorithm>
#include <utility>

#include "coppice/processor/unicode.h"

namespace coppice {
namespace {

// Follows chunks of a text through a step and rebuilds the plain ranges behind it.
class RangeMapper {
 public:
  explicit RangeMapper(std::vector<TextRange>* plain) : plain_(plain) {}

  // The bytes [begin, end) before the step became [out_begin, out_end).
  void chunk(size_t begin, size_t end, size_t out_begin, size_t out_end) {
    if (plain_ == nullptr) return;
    const auto b = static_cast<int64_t>(begin);
    while (at_ < plain_->size() && (*plain_)[at_].end <= b) ++at_;
    if (at_ == plain_->size() || (*plain_)[at_].begin >= static_cast<int64_t>(end)) return;
    const auto out_b = static_cast<int64_t>(out_begin);
    const auto out_e = static_cast<int64_t>(out_end);
    if (!mapped_.empty() && mapped_.back().end == out_b) {
      mapped_.back().end = out_e;
    } else {
      mapped_.push_back({out_b, out_e});
    }
  }
  void finish() {
    if (plain_ != nullptr) *plain_ = std::move(mapped_);
  }

 private:
  std::vector<TextRange>* plain_;
  std::vector<TextRange> mapped_;
  size_t at_ = 0;
};

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

}  // namespace

std::string TextNormalizer::apply(std::string_view text) const {
  std::string result(text);
  for (const Step& step : steps_) result = run(step, result, nullptr);
  return result;
}

std::string TextNormalizer::apply(std::string_view text, std::vector<TextRange>& plain) const {
  std::string result(text);
  for (const Step& step : steps_) result = run(step, result, plain.empty() ? nullptr : &plain);
  return result;
}

std::string TextNormalizer::run(const Step& step, std::string_view text,
                                std::vector<TextRange>* plain) {
  std::string out;
  if (text.empty()) return out;
  out.reserve(text.size() + step.to.size());
  if (step.kind == Step::kNfc && plain == nullptr) {
    append_nfc(out, text);
    return out;
  }
  RangeMapper mapper(plain);
  if (step.kind == Step::kPrepend) out = step.to;
  for (size_t at = 0; at < text.size();) {
    const size_t out_begin = out.size();
    size_t end = at + 1;
    if (step.kind == Step::kNfc) {
      // A chunk is one ASCII character and what may combine with it.
      while (end < text.size() && !is_ascii(text[end])) ++end;
      append_nfc(out, text.substr(at, end - at));
    } else if (step.kind == Step::kReplace && text.substr(at).starts_with(step.from)) {
      end = at + step.from.size();
      out += step.to;
    } else {
      out += text[at];
    }
    mapper.chunk(at, end, out_begin, out.size());
    at = end;
  }
  mapper.finish();
  return out;
}

}  // namespace coppice
