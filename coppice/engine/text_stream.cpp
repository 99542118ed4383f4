#include "coppice/engine/text_stream.h"

#include "coppice/processor/tokenizer.h"

namespace coppice {
namespace {

class TokenizerStream final : public TextStream {
 public:
  TokenizerStream(const Tokenizer& tokenizer, const DecodeOptions& options)
      : decoder_(tokenizer, options) {}
  std::string push(int32_t id) override { return decoder_.push(id); }
  std::string finish() override { return decoder_.flush(); }

 private:
  StreamDecoder decoder_;
};

}  // namespace

TextStreamFactory text_streams(const Tokenizer& tokenizer, bool strip_leading_space) {
  const DecodeOptions options{.skip_special = true, .strip_leading_space = strip_leading_space};
  return [&tokenizer, options] { return std::make_unique<TokenizerStream>(tokenizer, options); };
}

}  // namespace coppice
