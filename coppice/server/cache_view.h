// What a client that asked for kv.trace sees of its sequence in the cache: which rows hold which
// token. A row is one (layer, KV head): row = layer x Hkv + head.
//
// Taken on the engine's thread, between steps; written as JSON on the thread of the client. The
// JSON is in chunks of the stream without choices, under "kv_trace":
//
//   first   {"layers", "heads", "bytes_bound", "budget" (null: unbounded), "policy", "prompt": N}
//   tokens  {"tokens": ["the", " hen", ...], "special": [indices], "first": position}
//   view    {"seen": tokens read, "rows": [entries held by each row], "evicted", "kept", "bytes",
//            "pool_bytes", "at": [positions], "held": base64}
//
// A view tells of the tokens whose rows have changed since the view before: at[i] has the i-th
// ceil(rows / 8) bytes of "held", bit r % 8 of byte r / 8 for row r. Texts of tokens joined are the
// text; a token inside a character has "" and the last one of it has the character.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/engine/engine.h"
#include "coppice/engine/text_stream.h"
#include "coppice/eviction/policy.h"
#include "coppice/processor/tokenizer.h"

namespace coppice {

struct CacheView {
  int64_t seen = 0;                   // tokens read
  int64_t bytes = 0, pool_bytes = 0;  // of blocks: the sequence's, and all in use
  std::vector<int64_t> lengths;       // [rows] entries held
  std::vector<uint8_t> held;          // [seen x stride()] bit sets

  int64_t stride() const { return (static_cast<int64_t>(lengths.size()) + 7) / 8; }
};

// REQUIRES: no pass in progress.
CacheView view_cache(const KvCache& cache, SequenceId sequence);

// Turns views into JSON, each against the one before.
class CacheTrace final {
 public:
  // `tokenizer` must outlive it.
  explicit CacheTrace(const Tokenizer& tokenizer);

  Json first(const CacheConfig& cache, const EvictionConfig& eviction, int64_t prompt) const;
  Json tokens(std::span<const int32_t> ids);  // that follow the ones before
  Json view(const CacheView& view);

 private:
  const Tokenizer& tokenizer_;
  const TextStreamFactory streams_;
  std::unique_ptr<TextStream> text_;
  int64_t count_ = 0;
  std::vector<uint8_t> held_;  // of the view before
};

}  // namespace coppice
