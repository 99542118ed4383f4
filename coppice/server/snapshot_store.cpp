#include "coppice/server/snapshot_store.h"

#include <algorithm>
#include <array>

#include "coppice/core/error.h"
#include "coppice/engine/sequence.h"

namespace coppice {
namespace {

// Policies whose scores come from the cache's entries alone.
constexpr std::array<std::string_view, 6> kStateless = {"full",   "streaming", "knorm",
                                                        "random", "trimkv",    "dbtrimkv"};

}  // namespace

SnapshotStore::SnapshotStore(Engine& engine, int64_t max_blocks)
    : engine_(engine), max_blocks_(max_blocks) {}

bool SnapshotStore::keeps(std::string_view policy) const {
  return max_blocks_ > 0 &&
         std::find(kStateless.begin(), kStateless.end(), policy) != kStateless.end();
}

const SnapshotStore::Snapshot* SnapshotStore::find(std::span<const int32_t> prompt,
                                                   std::span<const ImageSpan> images,
                                                   const EvictionConfig& eviction,
                                                   int64_t chunk_tokens) {
  auto best = snapshots_.end();
  for (auto it = snapshots_.begin(); it != snapshots_.end(); ++it) {
    const std::vector<int32_t>& tokens = it->tokens;
    if (tokens.size() >= prompt.size()) continue;  // a token must be left to read
    if (best != snapshots_.end() && tokens.size() <= best->tokens.size()) continue;
    if (it->chunk_tokens != chunk_tokens || it->eviction != eviction) continue;
    if (!std::equal(tokens.begin(), tokens.end(), prompt.begin())) continue;
    if (same_images(it->images, images, static_cast<int64_t>(tokens.size()))) best = it;
  }
  if (best == snapshots_.end()) return nullptr;
  snapshots_.splice(snapshots_.begin(), snapshots_, best);
  return &snapshots_.front();
}

const SnapshotStore::Snapshot* SnapshotStore::find_exact(std::span<const int32_t> tokens,
                                                         const EvictionConfig& eviction,
                                                         int64_t chunk_tokens) {
  for (auto it = snapshots_.begin(); it != snapshots_.end(); ++it) {
    if (it->chunk_tokens != chunk_tokens || it->eviction != eviction || !it->images.empty())
      continue;
    if (!std::equal(tokens.begin(), tokens.end(), it->tokens.begin(), it->tokens.end())) continue;
    snapshots_.splice(snapshots_.begin(), snapshots_, it);
    return &snapshots_.front();
  }
  return nullptr;
}

// Least recently used snapshots go until `needed` blocks more may be held.
bool SnapshotStore::make_room(int64_t needed, int64_t free_blocks) {
  if (needed > max_blocks_ || needed > free_blocks + blocks_) return false;
  while (blocks_ + needed > max_blocks_ || needed > free_blocks) {
    free_blocks += snapshots_.back().blocks;
    drop_oldest();
  }
  return true;
}

bool SnapshotStore::adopt(const SessionImage& image, int64_t chunk_tokens, int64_t free_blocks) {
  const EvictionConfig& eviction = image.eviction;
  if (!keeps(eviction.policy)) return false;
  if (find_exact(image.tokens, eviction, chunk_tokens) != nullptr) return true;
  int64_t needed = 0;
  for (const int64_t length : image.cache.lengths) needed += blocks_for_row(length);
  if (!make_room(needed, free_blocks)) return false;
  snapshots_.push_front({.session = engine_.import_session(image),
                         .tokens = image.tokens,
                         .images = {},
                         .eviction = eviction,
                         .chunk_tokens = chunk_tokens,
                         .blocks = needed});
  blocks_ += needed;
  return true;
}

bool SnapshotStore::add(SessionId session, std::vector<int32_t> tokens,
                        std::span<const ImageSpan> images, const EvictionConfig& eviction,
                        int64_t chunk_tokens, int64_t free_blocks) {
  const auto sequence = engine_.sequence_of_session(session);
  if (!sequence) return false;
  const int64_t needed = blocks_of(engine_.cache(), *sequence);
  if (!make_room(needed, free_blocks)) return false;
  std::vector<ImageSpan> places;
  for (const ImageSpan& span : images)
    if (span.begin < static_cast<int64_t>(tokens.size()))
      places.push_back({span.begin, span.tokens, span.hash, {}});
  snapshots_.push_front({.session = engine_.fork_session(session),
                         .tokens = std::move(tokens),
                         .images = std::move(places),
                         .eviction = eviction,
                         .chunk_tokens = chunk_tokens,
                         .blocks = needed});
  blocks_ += needed;
  return true;
}

bool SnapshotStore::drop_oldest() {
  if (snapshots_.empty()) return false;
  engine_.drop_session(snapshots_.back().session);
  blocks_ -= snapshots_.back().blocks;
  snapshots_.pop_back();
  return true;
}

}  // namespace coppice
