#include "coppice/train/document_stream.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/core/rng.h"
#include "coppice/train/state_fields.h"

namespace coppice {
namespace {

std::vector<int64_t> shuffled(int64_t count, uint64_t seed) {
  std::vector<int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  Rng rng(seed);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

}  // namespace

DocumentStream::DocumentStream(const std::vector<DocumentFile>& files,
                               const std::vector<double>& weights, const DocumentEncoder& encoder,
                               const StreamOptions& options)
    : files_(files), encoder_(encoder), options_(options), weights_(weights) {
  if (files.empty()) fail_argument("training data: no file is given");
  if (options.length < 2 || options.min_tokens < 2 || options.min_tokens > options.length ||
      options.open_documents < 1)
    fail_argument(
        "training data: expected 2 <= shortest document <= length and an open document, got {}, {} "
        "and {}",
        options.min_tokens, options.length, options.open_documents);
  if (weights_.empty())
    for (const DocumentFile& file : files)
      weights_.push_back(static_cast<double>(file.file_bytes()));
  if (weights_.size() != files.size())
    fail_argument("training data: {} weights for {} files", weights_.size(), files.size());
  for (const double weight : weights_)
    if (!(weight > 0)) fail_argument("training data: a weight must be above 0, got {}", weight);
  sources_.resize(files.size());
}

int64_t DocumentStream::next_document(std::size_t index) {
  Source& source = sources_[index];
  if (source.taken == files_[index].size()) {
    ++source.pass;
    source.taken = 0;
    source.order.clear();
  }
  if (source.order.empty())
    source.order = shuffled(files_[index].size(),
                            mix_seed(options_.seed, index, static_cast<uint64_t>(source.pass)));
  return source.order[static_cast<std::size_t>(source.taken++)];
}

std::vector<EncodedDocument> DocumentStream::cut(const EncodedDocument& whole,
                                                 bool conversation) const {
  const auto size = static_cast<int64_t>(whole.tokens.size());
  const int64_t until = conversation ? std::min(size, options_.length) : size;
  std::vector<EncodedDocument> pieces;
  for (int64_t begin = 0; begin < until; begin += options_.length) {
    const int64_t end = std::min(until, begin + options_.length);
    if (end - begin < options_.min_tokens) break;
    EncodedDocument piece;
    piece.tokens.assign(whole.tokens.begin() + begin, whole.tokens.begin() + end);
    piece.learned.assign(whole.learned.begin() + begin, whole.learned.begin() + end);
    piece.learned.front() = 0;  // its predecessor is not in this piece
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

DocumentStream::Open DocumentStream::load(std::size_t source, int64_t document) const {
  const DocumentFile& file = files_[source];
  const Document read = file.read(document);
  Open open{source, document, 0, {}};
  open.pieces = cut(encoder_.encode(read, file.where(document)), read.is_conversation());
  return open;
}

void DocumentStream::open_one() {
  std::size_t behind = 0;
  for (std::size_t i = 1; i < sources_.size(); ++i)
    if (static_cast<double>(sources_[i].tokens) / weights_[i] <
        static_cast<double>(sources_[behind].tokens) / weights_[behind])
      behind = i;
  for (int64_t tries = 0; tries <= files_[behind].size(); ++tries) {
    Open open = load(behind, next_document(behind));
    if (open.pieces.empty()) continue;
    for (const EncodedDocument& piece : open.pieces)
      sources_[behind].tokens += static_cast<int64_t>(piece.tokens.size());
    open_.push_back(std::move(open));
    return;
  }
  fail_argument("{}: no document has at least {} tokens", files_[behind].path(),
                options_.min_tokens);
}

Piece DocumentStream::next() {
  while (static_cast<int64_t>(open_.size()) < options_.open_documents) open_one();
  const std::size_t slot =
      mix_seed(options_.seed, 0xd0c5, static_cast<uint64_t>(draws_++)) % open_.size();
  Open& open = open_[slot];
  const DocumentFile& file = files_[open.source];
  Piece piece;
  piece.label = fmt::format("{}, piece {}", file.where(open.document), open.next);
  piece.content = std::move(open.pieces[static_cast<std::size_t>(open.next++)]);
  if (open.next == static_cast<int64_t>(open.pieces.size()))
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(slot));
  return piece;
}

Json DocumentStream::state() const {
  Json sources = Json::array();
  for (const Source& source : sources_)
    sources.push_back({{"pass", source.pass}, {"taken", source.taken}, {"tokens", source.tokens}});
  Json open = Json::array();
  for (const Open& document : open_)
    open.push_back(
        {{"source", document.source}, {"document", document.document}, {"next", document.next}});
  return {{"sources", sources}, {"open", open}, {"draws", draws_}};
}

void DocumentStream::restore(const Json& state) {
  draws_ = count_field(state, "draws");
  const Json empty = Json::array();
  const Json& sources = state.contains("sources") ? state["sources"] : empty;
  if (!sources.is_array() || sources.size() != files_.size())
    fail_argument("training state: it has {} data files, the run {}", sources.size(),
                  files_.size());
  for (std::size_t i = 0; i < files_.size(); ++i) {
    Source& source = sources_[i];
    source = {count_field(sources[i], "pass"),
              count_field(sources[i], "taken"),
              count_field(sources[i], "tokens"),
              {}};
    if (source.taken > files_[i].size())
      fail_argument("training state: {} documents of {} were read, but it has {}", source.taken,
                    files_[i].path(), files_[i].size());
  }
  open_.clear();
  const Json& open = state.contains("open") ? state["open"] : empty;
  if (!open.is_array()) fail_argument("training state: expected a list \"open\"");
  for (const Json& item : open) {
    const int64_t source = count_field(item, "source");
    if (source >= static_cast<int64_t>(files_.size()))
      fail_argument("training state: data file {} of {}", source, files_.size());
    const int64_t document = count_field(item, "document");
    if (document >= files_[static_cast<std::size_t>(source)].size())
      fail_argument("training state: document {} of {}", document,
                    files_[static_cast<std::size_t>(source)].path());
    Open loaded = load(static_cast<std::size_t>(source), document);
    loaded.next = count_field(item, "next");
    if (loaded.next >= static_cast<int64_t>(loaded.pieces.size()))
      fail_argument("training state: piece {} of {}", loaded.next,
                    files_[static_cast<std::size_t>(source)].where(document));
    open_.push_back(std::move(loaded));
  }
}

}  // namespace coppice
