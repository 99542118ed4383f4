// States of the cache after the beginning of a prompt, kept so that a later prompt with the same
// beginning does not read it again.
//
// A snapshot is an engine session whose tokens end where a chunk of the prompt ended. Eviction
// depends on where chunks end, so the state after the first k chunks is a function of those tokens
// and of the cache settings alone: a prompt that goes on from a snapshot gets, bit for bit, what it
// would get when read from its beginning, whatever was evicted. Least recently used out.
// Not thread-safe: the engine's thread alone uses it.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "coppice/engine/engine.h"

namespace coppice {

class SnapshotStore final {
 public:
  // Holds at most `max_blocks` blocks of the engine's pool; 0 stores nothing. `engine` must outlive
  // it.
  SnapshotStore(Engine& engine, int64_t max_blocks);

  struct Snapshot {
    SessionId session = 0;
    std::vector<int32_t> tokens;
    std::vector<ImageSpan> images;  // without embeddings
    EvictionConfig eviction;
    int64_t chunk_tokens = 0;
    int64_t blocks = 0;
  };

  // The longest snapshot that `prompt` begins with, pictures included, under the same settings; it
  // counts as used. nullptr: none.
  const Snapshot* find(std::span<const int32_t> prompt, std::span<const ImageSpan> images,
                       const EvictionConfig& eviction, int64_t chunk_tokens);
  // Keeps a copy of `session`, whose tokens are `tokens`, with `images` of the
  // prompt that they begin. `free_blocks`: of the pool, beside all
  // that is promised to requests and held here; least recently used snapshots make room. False:
  // there was none, or the copy alone is over the limit.
  bool add(SessionId session, std::vector<int32_t> tokens, std::span<const ImageSpan> images,
           const EvictionConfig& eviction, int64_t chunk_tokens, int64_t free_blocks);
  // Takes a session that was stored outside. False: there was no room, and nothing was made. Throws
  // as Engine::import_session. One with the same tokens and settings counts as taken.
  bool adopt(const SessionImage& image, int64_t chunk_tokens, int64_t free_blocks);
  // Exactly these tokens, no pictures, under these settings; it counts as used. nullptr: none.
  const Snapshot* find_exact(std::span<const int32_t> tokens, const EvictionConfig& eviction,
                             int64_t chunk_tokens);
  bool drop_oldest();  // false: there is none

  // Whether states under `policy` can be kept: not those of policies that remember more than what
  // the cache holds.
  bool keeps(std::string_view policy) const;
  int64_t blocks() const { return blocks_; }
  int64_t max_blocks() const { return max_blocks_; }
  int64_t size() const { return static_cast<int64_t>(snapshots_.size()); }

 private:
  bool make_room(int64_t needed, int64_t free_blocks);

  Engine& engine_;
  int64_t max_blocks_;
  int64_t blocks_ = 0;
  std::list<Snapshot> snapshots_;  // most recently used first
};

}  // namespace coppice
