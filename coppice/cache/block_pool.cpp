#include "coppice/cache/block_pool.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "coppice/core/error.h"

namespace coppice {

BlockPool::BlockPool(int64_t num_blocks) {
  if (num_blocks < 0 || num_blocks > std::numeric_limits<int32_t>::max())
    fail_argument("block pool: size must be 0 to {}, got {}", std::numeric_limits<int32_t>::max(),
                  num_blocks);
  taken_.resize(static_cast<std::size_t>(num_blocks), false);
}

bool BlockPool::take(int64_t count, std::vector<int32_t>& ids) {
  if (count < 0) fail_argument("block pool: cannot take {} blocks", count);
  if (count > free()) return false;
  ids.reserve(ids.size() + static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    int32_t id;
    if (returned_.empty()) {
      id = static_cast<int32_t>(fresh_++);
    } else {
      std::pop_heap(returned_.begin(), returned_.end(), std::greater<>());
      id = returned_.back();
      returned_.pop_back();
    }
    taken_[static_cast<std::size_t>(id)] = true;
    ids.push_back(id);
  }
  peak_ = std::max(peak_, in_use());
  return true;
}

void BlockPool::give_back(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    COPPICE_CHECK(id >= 0 && id < size() && is_taken(id),
                  "block {} was given back but is not in use", id);
    taken_[static_cast<std::size_t>(id)] = false;
    returned_.push_back(id);
    std::push_heap(returned_.begin(), returned_.end(), std::greater<>());
  }
}

}  // namespace coppice
