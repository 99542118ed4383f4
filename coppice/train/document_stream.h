// The endless sequence of document pieces that training reads: several files, mixed by weight,
// shuffled, cut to length.
//
// Next comes a document of the file whose tokens lag most behind its weight; within a file, one
// pass goes through every document once, in an order that depends on the seed and the pass alone.
// A plain document longer than `length` is cut into consecutive pieces, each a document of its own
// (positions start again); a conversation keeps its first `length` tokens. Several documents are
// open at a time and pieces are drawn from them in turn by chance, so that a long one does not fill
// whole batches. Nothing depends on workers, threads or time: state() and the files determine all
// that follows. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/train/document_file.h"
#include "coppice/train/encode_document.h"

namespace coppice {

struct StreamOptions {
  int64_t length = 2048;    // tokens of a piece at most, at least 2
  int64_t min_tokens = 16;  // shorter documents and ends of documents are left out
  int64_t open_documents = 16;
  uint64_t seed = 0;
};

struct Piece {
  std::string label;  // "mix.jsonl:17 (id), piece 3": for messages
  EncodedDocument content;
};

class DocumentStream final {
 public:
  // `weights` one per file, above 0: shares of tokens. Empty: by file size, so that all end a pass
  // together. `files` and `encoder` must outlive the stream.
  DocumentStream(const std::vector<DocumentFile>& files, const std::vector<double>& weights,
                 const DocumentEncoder& encoder, const StreamOptions& options);

  // Throws as DocumentFile::read and DocumentEncoder::encode, and kInvalidArgument when a whole
  // pass through a file gives no piece.
  Piece next();

  Json state() const;
  // Throws kInvalidArgument for a state that does not fit the files.
  void restore(const Json& state);

  int64_t passes(std::size_t file) const { return sources_[file].pass; }  // begun

 private:
  struct Source {
    int64_t pass = 0;
    int64_t taken = 0;           // of this pass
    int64_t tokens = 0;          // in all
    std::vector<int64_t> order;  // of pass `pass`; made when it is needed
  };
  // A document with pieces left to give.
  struct Open {
    std::size_t source = 0;
    int64_t document = 0;
    int64_t next = 0;  // piece
    std::vector<EncodedDocument> pieces;
  };

  int64_t next_document(std::size_t source);
  void open_one();
  Open load(std::size_t source, int64_t document) const;
  std::vector<EncodedDocument> cut(const EncodedDocument& whole, bool conversation) const;

  const std::vector<DocumentFile>& files_;
  const DocumentEncoder& encoder_;
  StreamOptions options_;
  std::vector<double> weights_;
  std::vector<Source> sources_;
  std::vector<Open> open_;
  int64_t draws_ = 0;
};

}  // namespace coppice
