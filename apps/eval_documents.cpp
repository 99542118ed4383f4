#include "apps/eval_documents.h"

#include "coppice/train/encode_document.h"

namespace coppice {

std::vector<EvalDocument> read_documents(const DocumentFile& file, const EvalGrid& grid,
                                         int64_t shortest, int64_t longest) {
  const DocumentEncoder encoder(grid.runtime().tokenizer(), grid.runtime().find_chat_template());
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

void add_data_option(CLI::App& app, std::string& path) {
  app.add_option("--data", path, "documents, a JSON object a line, as for `coppice train`")
      ->required()
      ->check(CLI::ExistingFile);
}

void add_documents_option(CLI::App& app, int64_t& documents) {
  app.add_option("--documents", documents,
                 "documents of each context, spread evenly over those long enough; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

}  // namespace coppice
