#include "apps/eval_texts.h"

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/core/sha256.h"
#include "coppice/train/document_file.h"

namespace coppice {

std::vector<std::string> read_passages(const std::vector<std::string>& paths,
                                       const std::string& source) {
  std::vector<std::string> passages;
  for (const std::string& path : paths) {
    if (!path.ends_with(".jsonl")) {
      passages.push_back(read_text_file(path));
      continue;
    }
    const DocumentFile file = DocumentFile::open(path);
    const std::size_t before = passages.size();
    for (int64_t i = 0; i < file.size(); ++i) {
      Document document = file.read(i);
      if (!document.is_conversation() && (source.empty() || document.source == source))
        passages.push_back(std::move(document.text));
    }
    if (passages.size() == before)
      fail_argument("{}: holds no texts{}", path,
                    source.empty() ? "" : fmt::format(" of the source \"{}\"", source));
  }
  return passages;
}

std::string sha256_of(const std::vector<std::string>& passages) {
  Sha256 hash;
  for (const std::string& passage : passages)
    hash.update(std::as_bytes(std::span(passage.c_str(), passage.size() + 1)));  // with its 0
  return hash.finish();
}

TextModel text_model(const EvalGrid& grid) {
  const Runtime& runtime = grid.runtime();
  return {.base = grid.model(),
          .tokenizer = &runtime.tokenizer(),
          .chat = &runtime.chat_template(),
          .end_token_ids = runtime.end_token_ids()};
}

}  // namespace coppice
