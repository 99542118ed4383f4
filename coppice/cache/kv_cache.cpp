#include "coppice/cache/kv_cache.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "coppice/core/error.h"

namespace coppice {
namespace {

const CacheConfig& validated(const CacheConfig& config) {
  validate(config);
  return config;
}

// Gives the pages of freed blocks back. Freed runs are widened by the free blocks beside them,
// about a large page's worth at most, so that pages shared by two frees go too, and what the system
// has put behind the blocks in use.
void release_free_runs(PoolTensors& pools, const BlockPool& pool, std::vector<int32_t> freed) {
  constexpr int64_t kWidest = 32768;
  std::sort(freed.begin(), freed.end());
  for (std::size_t i = 0; i < freed.size();) {
    std::size_t end = i + 1;
    while (end < freed.size() && freed[end] == freed[end - 1] + 1) ++end;
    int64_t first = freed[i], last = int64_t{freed[end - 1]} + 1;
    for (int64_t n = 0; n < kWidest && first > 0; ++n, --first)
      if (pool.is_taken(static_cast<int32_t>(first - 1))) break;
    for (int64_t n = 0; n < kWidest && last < pool.size(); ++n, ++last)
      if (pool.is_taken(static_cast<int32_t>(last))) break;
    release_blocks(pools, first, last);
    while (end < freed.size() && freed[end] < last) ++end;  // released with this run
    i = end;
  }
}

}  // namespace

void BlockTable::stamp(int64_t first, int64_t last) {
  static std::atomic<uint64_t> clock{0};
  if (first >= last) return;
  const uint64_t now = clock.fetch_add(1, std::memory_order_relaxed) + 1;
  for (int64_t b = first / kBlockEntries; b <= (last - 1) / kBlockEntries; ++b)
    stamps[static_cast<std::size_t>(b)] = now;
}

KvCache::KvCache(const CacheConfig& config)
    : config_(validated(config)), pool_(config.max_blocks), pools_(allocate_pools(config)) {}

const KvCache::Sequence& KvCache::find(SequenceId id) const {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) fail_argument("KV cache: no sequence {}", id);
  return it->second;
}

KvCache::Sequence& KvCache::find(SequenceId id) {
  return const_cast<Sequence&>(static_cast<const KvCache&>(*this).find(id));
}

std::size_t KvCache::row_index(int64_t layer, int64_t head) const {
  if (layer < 0 || layer >= config_.num_layers)
    fail_argument("KV cache: layer must be below {}, got {}", config_.num_layers, layer);
  if (head < 0 || head >= config_.num_kv_heads)
    fail_argument("KV cache: KV head must be below {}, got {}", config_.num_kv_heads, head);
  return static_cast<std::size_t>(layer * config_.num_kv_heads + head);
}

SequenceId KvCache::add_sequence() {
  Sequence sequence;
  sequence.rows.resize(static_cast<std::size_t>(config_.num_rows()));
  sequence.appended.resize(static_cast<std::size_t>(config_.num_layers), 0);
  sequences_.emplace(next_id_, std::move(sequence));
  return next_id_++;
}

SequenceId KvCache::fork(SequenceId id) {
  const Sequence& source = find(id);
  if (source.tokens_in_pass > 0)
    fail_argument("KV cache: sequence {} has a pass in progress and cannot be forked", id);
  std::vector<int32_t> from, to;
  for (const BlockTable& row : source.rows)
    from.insert(from.end(), row.blocks.begin(), row.blocks.end());
  const auto count = static_cast<int64_t>(from.size());
  if (!pool_.take(count, to))
    fail(ErrorCode::kCapacity, "KV cache: a fork of sequence {} needs {} blocks, {} are free", id,
         count, pool_.free());
  copy_blocks(pools_, from, to);
  Sequence copy = source;
  auto next = to.begin();
  for (BlockTable& row : copy.rows)
    for (int32_t& block : row.blocks) block = *next++;
  sequences_.emplace(next_id_, std::move(copy));
  return next_id_++;
}

void KvCache::remove_sequence(SequenceId id) {
  std::vector<int32_t> freed;
  for (const BlockTable& row : find(id).rows)
    freed.insert(freed.end(), row.blocks.begin(), row.blocks.end());
  pool_.give_back(freed);
  sequences_.erase(id);
  if (!config_.resident) release_free_runs(pools_, pool_, std::move(freed));
}

std::vector<SequenceId> KvCache::sequences() const {
  std::vector<SequenceId> ids;
  for (const auto& [id, sequence] : sequences_) ids.push_back(id);
  return ids;
}

bool KvCache::reserve(SequenceId id, int64_t new_tokens) {
  Sequence& sequence = find(id);
  if (sequence.tokens_in_pass > 0)
    fail_argument("KV cache: sequence {} already has a pass in progress", id);
  if (new_tokens < 1)
    fail_argument("KV cache: tokens of a pass must be at least 1, got {}", new_tokens);
  if (new_tokens > std::numeric_limits<int32_t>::max() - sequence.tokens_seen)
    fail(ErrorCode::kCapacity, "KV cache: positions end at {}; {} tokens seen and {} more asked",
         std::numeric_limits<int32_t>::max(), sequence.tokens_seen, new_tokens);
  int64_t needed = 0;
  for (const BlockTable& row : sequence.rows)
    needed += blocks_for_row(row.length + new_tokens) - static_cast<int64_t>(row.blocks.size());
  if (needed > pool_.free()) return false;
  for (BlockTable& row : sequence.rows) {
    const int64_t more =
        blocks_for_row(row.length + new_tokens) - static_cast<int64_t>(row.blocks.size());
    COPPICE_CHECK(pool_.take(more, row.blocks), "{} blocks were counted free", more);
    row.stamps.resize(row.blocks.size(), 0);
  }
  sequence.tokens_in_pass = new_tokens;
  std::fill(sequence.appended.begin(), sequence.appended.end(), uint8_t{0});
  return true;
}

void KvCache::check_new_entries(const Sequence& sequence, int64_t layer,
                                const NewEntries& entries) const {
  if (sequence.tokens_in_pass == 0) fail_argument("KV cache: append without reserve");
  if (sequence.appended[static_cast<std::size_t>(layer)] != 0)
    fail_argument("KV cache: layer {} was already appended in this pass", layer);
  const int64_t tokens = sequence.tokens_in_pass, heads = config_.num_kv_heads;
  const auto check = [&](const char* name, const at::Tensor& tensor, at::IntArrayRef shape) {
    if (!tensor.defined() || tensor.sizes() != shape)
      fail_argument("KV cache: {} must have shape [{}], got [{}]", name, fmt::join(shape, ", "),
                    tensor.defined() ? fmt::format("{}", fmt::join(tensor.sizes(), ", "))
                                     : std::string("nothing"));
  };
  check("k", entries.k, {tokens, heads, config_.head_dim});
  check("v", entries.v, {tokens, heads, config_.head_dim});
  if (entries.log_beta.defined()) check("log_beta", entries.log_beta, {tokens, heads});
  if (entries.modality.defined()) check("modality", entries.modality, {tokens});
}

void KvCache::append(int64_t layer, SequenceId id, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& log_beta, const at::Tensor& modality) {
  Sequence& sequence = find(id);
  const std::size_t first_row = row_index(layer, 0);
  const NewEntries entries{
      k, v, log_beta, modality, sequence.tokens_seen, sequence.next_rotary, sequence.pass_rotary};
  check_new_entries(sequence, layer, entries);
  const std::span<BlockTable> rows =
      std::span(sequence.rows).subspan(first_row, static_cast<std::size_t>(config_.num_kv_heads));
  write_entries(pools_, rows, entries);
  for (BlockTable& row : rows) {
    row.length += sequence.tokens_in_pass;
    row.stamp(row.length - sequence.tokens_in_pass, row.length);
  }
  sequence.entries += sequence.tokens_in_pass * config_.num_kv_heads;
  sequence.appended[static_cast<std::size_t>(layer)] = 1;
}

void KvCache::commit(SequenceId id) {
  Sequence& sequence = find(id);
  if (!pass_complete(id))
    fail_argument("KV cache: commit of sequence {} needs a pass with all {} layers appended", id,
                  config_.num_layers);
  sequence.tokens_seen += sequence.tokens_in_pass;
  sequence.next_rotary = rotary_after_pass(id);
  sequence.pass_rotary.clear();
  sequence.tokens_in_pass = 0;
  sequence.pass_notes.clear();
}

at::Tensor& KvCache::rotary_positions() {
  COPPICE_CHECK(config_.rotary_positions, "the KV cache keeps no rotary positions");
  return pools_.rotary;
}

int64_t KvCache::next_rotary(SequenceId id) const { return find(id).next_rotary; }

int64_t KvCache::rotary_after_pass(SequenceId id) const {
  const Sequence& sequence = find(id);
  return sequence.pass_rotary.empty() ? sequence.next_rotary + sequence.tokens_in_pass
                                      : sequence.pass_next_rotary;
}

void KvCache::set_pass_rotary(SequenceId id, std::vector<int32_t> positions, int64_t next) {
  Sequence& sequence = find(id);
  const bool appended =
      std::find(sequence.appended.begin(), sequence.appended.end(), 1) != sequence.appended.end();
  if (sequence.tokens_in_pass == 0 || appended ||
      static_cast<int64_t>(positions.size()) != sequence.tokens_in_pass || next < 0 ||
      next > std::numeric_limits<int32_t>::max())
    fail_argument("KV cache: {} rotary positions and then {}, for a pass of {} tokens{}",
                  positions.size(), next, sequence.tokens_in_pass,
                  appended ? " of which some are written" : "");
  sequence.pass_rotary = std::move(positions);
  sequence.pass_next_rotary = next;
}

void KvCache::set_next_rotary(SequenceId id, int64_t position) {
  COPPICE_CHECK(config_.rotary_positions, "the KV cache keeps no rotary positions");
  Sequence& sequence = find(id);
  COPPICE_CHECK(sequence.tokens_in_pass == 0, "sequence {} has a pass in progress", id);
  sequence.next_rotary = position;
}

void KvCache::trim(BlockTable& row) {
  const auto needed = static_cast<std::size_t>(blocks_for_row(row.length));
  if (needed == row.blocks.size()) return;
  pool_.give_back(std::span(row.blocks).subspan(needed));
  row.blocks.resize(needed);
  row.stamps.resize(needed);
}

void KvCache::rollback(SequenceId id) {
  Sequence& sequence = find(id);
  if (sequence.tokens_in_pass == 0) return;
  const int64_t heads = config_.num_kv_heads;
  for (std::size_t r = 0; r < sequence.rows.size(); ++r) {
    BlockTable& row = sequence.rows[r];
    if (sequence.appended[r / static_cast<std::size_t>(heads)] != 0) {
      row.length -= sequence.tokens_in_pass;
      sequence.entries -= sequence.tokens_in_pass;
    }
    trim(row);
  }
  sequence.tokens_in_pass = 0;
  sequence.pass_rotary.clear();
  sequence.pass_notes.clear();
}

int64_t KvCache::tokens_seen(SequenceId id) const { return find(id).tokens_seen; }
int64_t KvCache::tokens_in_pass(SequenceId id) const { return find(id).tokens_in_pass; }
int64_t KvCache::entries(SequenceId id) const { return find(id).entries; }

bool KvCache::pass_complete(SequenceId id) const {
  const Sequence& sequence = find(id);
  return sequence.tokens_in_pass > 0 &&
         std::find(sequence.appended.begin(), sequence.appended.end(), 0) ==
             sequence.appended.end();
}

const BlockTable& KvCache::row(SequenceId id, int64_t layer, int64_t head) const {
  return find(id).rows[row_index(layer, head)];
}

std::span<const BlockTable> KvCache::rows(SequenceId id) const { return find(id).rows; }

void KvCache::keep(SequenceId id, int64_t layer, int64_t head, std::span<const uint8_t> keep) {
  const int64_t length = row(id, layer, head).length;
  if (static_cast<int64_t>(keep.size()) != length)
    fail_argument("KV cache: a row of {} entries needs as many flags, got {}", length, keep.size());
  dropped_.clear();
  for (std::size_t i = 0; i < keep.size(); ++i)
    if (keep[i] == 0) dropped_.push_back(static_cast<int32_t>(i));
  const RowDrop drops[] = {{static_cast<int64_t>(row_index(layer, head)), dropped_}};
  drop(id, drops);
}

void KvCache::drop(SequenceId id, std::span<const RowDrop> drops) {
  Sequence& sequence = find(id);
  if (sequence.tokens_in_pass > 0)
    fail_argument("KV cache: sequence {} has a pass in progress; entries cannot be dropped", id);
  int64_t previous_row = -1;
  for (const RowDrop& drop : drops) {
    if (drop.row <= previous_row || drop.row >= config_.num_rows())
      fail_argument("KV cache: rows to drop from must rise and be below {}, got {} after {}",
                    config_.num_rows(), drop.row, previous_row);
    previous_row = drop.row;
    const int64_t length = sequence.rows[static_cast<std::size_t>(drop.row)].length;
    int32_t previous = -1;
    for (const int32_t place : drop.places) {
      if (place <= previous || place >= length)
        fail_argument("KV cache: dropped places must rise and be below {}, got {} after {}", length,
                      place, previous);
      previous = place;
    }
  }
  moves_.clear();
  for (const RowDrop& drop : drops)
    fill_holes(sequence.rows[static_cast<std::size_t>(drop.row)], drop.places);
  move_entries(pools_, moves_);
  for (const RowDrop& drop : drops) {
    BlockTable& row = sequence.rows[static_cast<std::size_t>(drop.row)];
    row.length -= static_cast<int64_t>(drop.places.size());
    sequence.entries -= static_cast<int64_t>(drop.places.size());
    trim(row);
  }
}

// Survivors from the new end on fill the holes before it, both from the front.
void KvCache::fill_holes(BlockTable& row, std::span<const int32_t> dropped) {
  const int64_t length = row.length - static_cast<int64_t>(dropped.size());
  auto next_dropped = std::lower_bound(dropped.begin(), dropped.end(), length);
  auto hole = dropped.begin();
  for (int64_t place = length; place < row.length; ++place) {
    if (next_dropped != dropped.end() && *next_dropped == place) {
      ++next_dropped;
    } else {
      moves_.push_back({row.slot(place), row.slot(*hole)});
      row.stamp(*hole, *hole + 1);
      ++hole;
    }
  }
}

void KvCache::set_aux(SequenceId id, int64_t layer, int64_t head, int64_t first,
                      std::span<const float> values) {
  BlockTable& row = find(id).rows[row_index(layer, head)];
  const auto count = static_cast<int64_t>(values.size());
  if (first < 0 || first > row.length || count > row.length - first)
    fail_argument("KV cache: aux of places {} to {} in a row of {} entries", first, first + count,
                  row.length);
  row.stamp(first, first + count);
  float* local = config_.device.is_cpu() ? pools_.aux.mutable_data_ptr<float>() : nullptr;
  for_each_run(row, first, first + count, [&](int64_t slot, int64_t index, int64_t n) {
    const auto source =
        values.subspan(static_cast<std::size_t>(index - first), static_cast<std::size_t>(n));
    if (local != nullptr)
      std::copy(source.begin(), source.end(), local + slot);
    else
      pools_.aux.view(-1)
          .narrow(0, slot, n)
          .copy_(at::tensor(at::ArrayRef<float>(source.data(), source.size())));
  });
}

std::vector<at::Tensor>& KvCache::notes(SequenceId id) { return find(id).notes; }
std::vector<at::Tensor>& KvCache::pass_notes(SequenceId id) { return find(id).pass_notes; }

}  // namespace coppice
