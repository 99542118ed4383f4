#include "apps/eval_documents.h"

#include <algorithm>

namespace coppice {

std::vector<EvalDocument> read_documents(const DocumentFile& file, const DocumentEncoder& encoder,
                                         int64_t shortest, int64_t longest) {
  std::vector<EvalDocument> documents;
  for (int64_t i = 0; i < file.size(); ++i) {
    Document document = file.read(i);
    std::vector<int32_t> tokens = encoder.encode(document, file.where(i)).tokens;
    if (static_cast<int64_t>(tokens.size()) < shortest) continue;
    tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(longest)));
    tokens.shrink_to_fit();
    documents.push_back({i, document.id, document.source, std::move(tokens)});
  }
  return documents;
}

}  // namespace coppice
