// A free list of fixed-size blocks. It hands out ids and knows no tensor.
//
// The lowest free id goes out first, so that a pool that was once full and is now nearly empty
// works in few pages of memory. Ids never handed out cost one bit each. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace coppice {

class BlockPool final {
 public:
  explicit BlockPool(int64_t num_blocks);  // throws kInvalidArgument below 0 or above int32

  // `count` ids, or false and no change when fewer are free. Appends to `ids`. Throws
  // kInvalidArgument for a count below 0.
  [[nodiscard]] bool take(int64_t count, std::vector<int32_t>& ids);
  // REQUIRES: every id was taken and not yet given back (checked: throws kInternal).
  void give_back(std::span<const int32_t> ids);

  int64_t size() const { return static_cast<int64_t>(taken_.size()); }
  int64_t free() const { return static_cast<int64_t>(returned_.size()) + size() - fresh_; }
  int64_t in_use() const { return size() - free(); }
  int64_t peak() const { return peak_; }  // most blocks ever in use at once
  bool is_taken(int32_t id) const { return taken_[static_cast<std::size_t>(id)]; }

 private:
  std::vector<int32_t> returned_;  // a heap, lowest id on top; all below fresh_
  int64_t fresh_ = 0;              // ids from here on were never handed out
  std::vector<bool> taken_;
  int64_t peak_ = 0;
};

}  // namespace coppice
