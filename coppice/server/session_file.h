// Sessions as files.
//
//   "coppice session 1\n"
//   uint64  bytes of the header, little-endian
//   header  JSON: settings, chunk, eviction, counts, tokens, lengths of the rows
//   tokens  int32 [tokens]
//   pools   those of KvCache::SequenceImage, one after another, as they lie in memory
//   sha256  64 hexadecimal digits, of all that stands before
//
// `settings` is a hash of what a state depends on beside its tokens and its own eviction settings:
// model, gate, sizes, types, chunk. A file with another one is foreign. Files are hostile input:
// every size is checked against what is there before it is used.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "coppice/engine/session_image.h"

namespace coppice {

// The parts of a file, in order. Views into it and into `image` stay valid as long as both live.
class SessionFile final {
 public:
  SessionFile(const SessionImage& image, const std::string& settings);
  SessionFile(const SessionFile&) = delete;
  SessionFile& operator=(const SessionFile&) = delete;

  std::span<const std::span<const std::byte>> parts() const { return parts_; }
  int64_t bytes() const;

 private:
  std::string head_, hash_;
  std::vector<std::span<const std::byte>> parts_;
};

// Throws kInvalidArgument: no session file, of another version, damaged, or foreign. `like`:
// KvCache::image_like(). Whether it fits the model is Engine::import_session's to say.
SessionImage read_session(std::span<const std::byte> file, const std::string& settings,
                          std::span<const at::Tensor> like);

}  // namespace coppice
