// Hidden states of the frozen model on disk: a document that comes again, in another pass over the
// data or in another run on the same model, costs the teacher nothing.
//
// One file a document, named by a hash of the model, the type of its numbers and the document's
// tokens, so that what another model wrote is never found. Documents are read one by one, not
// packed: the numbers then depend on the document alone, and it makes no difference, not in the
// last bit, whether they came from the disk. The files hold at most a given number of bytes
// together, also when several processes share the folder; once it is full nothing more is kept, for
// replacing what a pass over the data will need again would keep less, not more. A damaged file is
// made anew. A folder that cannot be written to is passed over, with a warning.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "coppice/nn/batch.h"

namespace coppice {

class TeacherCache final {
 public:
  // `model` names the frozen model and the arithmetic: its hash and dtype. Makes the folder. Throws
  // kInvalidArgument when there can be none, or for no bytes.
  TeacherCache(std::string folder, int64_t bytes, std::string model);

  // Hidden states [N, C] of the documents of `batch`, each from the disk or from `forward`, which
  // reads a batch of that one document.
  at::Tensor hidden(const Batch& batch, const std::function<at::Tensor(const Batch&)>& forward);

  int64_t found() const { return found_; }    // documents read from the disk
  int64_t stored() const { return stored_; }  // written to it

 private:
  std::string path_of(std::span<const int64_t> tokens) const;
  std::optional<at::Tensor> find(const std::string& path, int64_t tokens) const;
  void store(const std::string& path, const at::Tensor& hidden);

  std::string folder_, model_;
  int64_t bytes_ = 0;
  bool full_ = false;
  int64_t found_ = 0, stored_ = 0;
};

}  // namespace coppice
