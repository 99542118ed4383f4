#include "coppice/cache/validator.h"

#include <fmt/format.h>

#include <algorithm>

#include "coppice/cache/block_table.h"

namespace coppice {
namespace {

class Validator {
 public:
  explicit Validator(const CacheSnapshot& snapshot)
      : snapshot_(snapshot), owners_(snapshot.taken.size(), 0) {}

  std::vector<std::string> run() {
    for (const auto& sequence : snapshot_.sequences) check_sequence(sequence);
    check_pool();
    return std::move(faults_);
  }

 private:
  template <typename... Args>
  void fault(fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void check_sequence(const CacheSnapshot::Sequence& sequence) {
    const int64_t expected = snapshot_.num_layers * snapshot_.num_kv_heads;
    if (static_cast<int64_t>(sequence.rows.size()) != expected)
      fault("sequence {}: {} rows, expected {}", sequence.id, sequence.rows.size(), expected);
    int64_t entries = 0;
    for (std::size_t r = 0; r < sequence.rows.size(); ++r) {
      const std::string name = fmt::format("sequence {} row {}", sequence.id, r);
      check_blocks(name, sequence, sequence.rows[r]);
      check_positions(name, sequence, sequence.rows[r]);
      entries += sequence.rows[r].length;
    }
    if (entries != sequence.entries)
      fault("sequence {}: says {} entries, rows hold {}", sequence.id, sequence.entries, entries);
  }

  void check_blocks(const std::string& name, const CacheSnapshot::Sequence& sequence,
                    const CacheSnapshot::Row& row) {
    const auto blocks = static_cast<int64_t>(row.blocks.size());
    if (row.length < 0 || row.length > blocks * kBlockEntries)
      fault("{}: {} entries do not fit {} blocks", name, row.length, blocks);
    const int64_t due = row.length + (row.appended ? 0 : sequence.tokens_in_pass);
    if (blocks > blocks_for_row(due))
      fault("{}: {} blocks, {} entries need {}", name, blocks, due, blocks_for_row(due));
    for (const int32_t block : row.blocks) {
      if (block < 0 || block >= static_cast<int64_t>(owners_.size())) {
        fault("{}: block {} is outside the pool of {}", name, block, owners_.size());
        continue;
      }
      const auto index = static_cast<std::size_t>(block);
      if (++owners_[index] == 2) fault("{}: block {} is in two rows", name, block);
      if (snapshot_.taken[index] == 0) fault("{}: block {} is on the free list", name, block);
    }
  }

  void check_positions(const std::string& name, const CacheSnapshot::Sequence& sequence,
                       const CacheSnapshot::Row& row) {
    if (static_cast<int64_t>(row.positions.size()) != row.length) {
      fault("{}: {} positions for {} entries", name, row.positions.size(), row.length);
      return;
    }
    const int64_t pass = row.appended ? sequence.tokens_in_pass : 0;
    if (pass > row.length) fault("{}: {} entries, {} in the pass", name, row.length, pass);
    const int64_t settled = std::max<int64_t>(row.length - pass, 0);
    for (int64_t i = 0; i < row.length; ++i) {
      const int32_t position = row.positions[static_cast<std::size_t>(i)];
      if (i < settled ? position < 0 || position >= sequence.tokens_seen
                      : position != sequence.tokens_seen + i - settled)
        fault("{}: entry {} has position {}, {} tokens seen", name, i, position,
              sequence.tokens_seen);
    }
    std::vector<int32_t> sorted = row.positions;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) fault("{}: position {} is held twice", name, *twice);
  }

  void check_pool() {
    int64_t taken = 0;
    for (std::size_t b = 0; b < owners_.size(); ++b) {
      taken += snapshot_.taken[b] != 0 ? 1 : 0;
      if (snapshot_.taken[b] != 0 && owners_[b] == 0) fault("block {} is in use by no row", b);
    }
    if (taken != snapshot_.blocks_in_use)
      fault("pool says {} blocks in use, {} are", snapshot_.blocks_in_use, taken);
    if (static_cast<int64_t>(snapshot_.taken.size()) != snapshot_.max_blocks ||
        std::max(snapshot_.blocks_in_use, snapshot_.peak_blocks) > snapshot_.max_blocks)
      fault("bound of {} blocks passed: {} in use, peak {}, pool of {}", snapshot_.max_blocks,
            snapshot_.blocks_in_use, snapshot_.peak_blocks, snapshot_.taken.size());
    if (snapshot_.peak_blocks < snapshot_.blocks_in_use)
      fault("peak of {} blocks is below the {} in use", snapshot_.peak_blocks,
            snapshot_.blocks_in_use);
  }

  const CacheSnapshot& snapshot_;
  std::vector<int32_t> owners_;  // rows that list each block
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> validate(const CacheSnapshot& snapshot) {
  return Validator(snapshot).run();
}

}  // namespace coppice
