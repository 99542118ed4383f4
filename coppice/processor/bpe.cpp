#include "coppice/processor/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "coppice/core/error.h"

namespace coppice {
namespace {

constexpr uint64_t kEmpty = std::numeric_limits<uint64_t>::max();
constexpr size_t kShortWord = 24;  // below this a plain scan beats the heap

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t mix(uint64_t key) {
  key *= 0x9E3779B97F4A7C15ull;
  return static_cast<size_t>(key ^ key >> 32);
}

void merge_short(const MergeTable& merges, std::vector<int32_t>& symbols) {
  while (symbols.size() > 1) {
    const MergeTable::Merge* best = nullptr;
    size_t where = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const MergeTable::Merge* merge = merges.find(symbols[i], symbols[i + 1]);
      if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
        best = merge;
        where = i;
      }
    }
    if (best == nullptr) return;
    symbols[where] = best->id;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

// A linked list of symbols and a heap of candidate merges; stale candidates are dropped when met.
class LongMerger {
 public:
  LongMerger(const MergeTable& merges, std::vector<int32_t>& symbols)
      : merges_(merges), symbols_(symbols), links_(symbols.size()) {
    const auto n = static_cast<uint32_t>(symbols.size());
    for (uint32_t i = 0; i < n; ++i)
      links_[i] = {i == 0 ? kNone : i - 1, i + 1 < n ? i + 1 : kNone};
  }

  void run() {
    for (uint32_t i = 0; i + 1 < links_.size(); ++i) {
      if (const auto* merge = merges_.find(symbols_[i], symbols_[i + 1])) {
        heap_.push_back({merge->rank, i, merge->id});
      }
    }
    std::make_heap(heap_.begin(), heap_.end(), later);
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), later);
      const Candidate top = heap_.back();
      heap_.pop_back();
      apply(top);
    }
    std::erase(symbols_, kGone);
  }

 private:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  static constexpr int32_t kGone = std::numeric_limits<int32_t>::min();

  struct Link {
    uint32_t previous, next;
  };
  struct Candidate {
    uint32_t rank;
    uint32_t at;
    int32_t id;
  };
  static bool later(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }

  void propose(uint32_t left) {
    if (left == kNone || links_[left].next == kNone) return;
    if (const auto* merge = merges_.find(symbols_[left], symbols_[links_[left].next])) {
      heap_.push_back({merge->rank, left, merge->id});
      std::push_heap(heap_.begin(), heap_.end(), later);
    }
  }

  void apply(const Candidate& top) {
    if (symbols_[top.at] == kGone) return;
    const uint32_t right = links_[top.at].next;
    if (right == kNone) return;
    const auto* merge = merges_.find(symbols_[top.at], symbols_[right]);
    if (merge == nullptr || merge->id != top.id || merge->rank != top.rank) return;
    symbols_[top.at] = merge->id;
    symbols_[right] = kGone;
    links_[top.at].next = links_[right].next;
    if (links_[right].next != kNone) links_[links_[right].next].previous = top.at;
    propose(links_[top.at].previous);
    propose(top.at);
  }

  const MergeTable& merges_;
  std::vector<int32_t>& symbols_;
  std::vector<Link> links_;
  std::vector<Candidate> heap_;
};

}  // namespace

MergeTable::MergeTable(size_t count) { grow(std::bit_ceil(std::max<size_t>(2 * count, 16))); }

void MergeTable::grow(size_t slots) {
  std::vector<Slot> old(slots, Slot{kEmpty, {0, 0}});
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.key != kEmpty) slot_of(slot.key) = slot;
  }
}

MergeTable::Slot& MergeTable::slot_of(uint64_t key) {
  const size_t mask = slots_.size() - 1;
  size_t at = mix(key) & mask;
  while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & mask;
  return slots_[at];
}

void MergeTable::add(int32_t left, int32_t right, Merge merge) {
  COPPICE_CHECK(left >= 0 && right >= 0, "merge of the pair {}, {}", left, right);
  if (2 * (size_ + 1) > slots_.size()) grow(2 * slots_.size());
  Slot& slot = slot_of(pair_key(left, right));
  if (slot.key != kEmpty) return;
  slot = {pair_key(left, right), merge};
  ++size_;
}

const MergeTable::Merge* MergeTable::find(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return nullptr;
  const uint64_t key = pair_key(left, right);
  const size_t mask = slots_.size() - 1;
  for (size_t at = mix(key) & mask; slots_[at].key != kEmpty; at = (at + 1) & mask) {
    if (slots_[at].key == key) return &slots_[at].merge;
  }
  return nullptr;
}

void merge_symbols(const MergeTable& merges, std::vector<int32_t>& symbols) {
  if (symbols.size() < 2) return;
  if (symbols.size() < kShortWord) {
    merge_short(merges, symbols);
  } else {
    COPPICE_CHECK(symbols.size() < std::numeric_limits<uint32_t>::max(), "a word of {} symbols",
                  symbols.size());
    LongMerger(merges, symbols).run();
  }
}

}  // namespace coppice
