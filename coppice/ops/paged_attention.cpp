#include "coppice/ops/paged_attention.h"

#include <algorithm>
#include <atomic>
#include <numbers>
#include <vector>

#include "coppice/ops/paged_attention_kernels.h"
#include "coppice/ops/parallel.h"

namespace coppice::ops {
namespace {

// Queries that walk a row together: enough to keep the arithmetic ahead of the memory.
constexpr int64_t kTargetQueries = 36;
// Multiply-adds below which a second thread costs more than it brings.
constexpr int64_t kSerialWork = 200'000;

// One unit of work: a tile of a row's tokens against all pieces that they see, or, of a row with
// one tile, against one piece.
struct Item {
  const PagedRow* row;
  int64_t first;  // token of the row
  int64_t count;  // tokens
  int64_t piece;  // kAllPieces, or the one
  int64_t split;  // index into Data::pending, of an item with one piece
};
constexpr int64_t kAllPieces = -1;
constexpr int64_t kPieceBlocks = kPieceEntries / kSlots;

// A row whose pieces are folded apart and merged by whoever folds the last one.
struct Split {
  int64_t pieces;
  int64_t state;  // offset in Data::states of the first piece's
};

int64_t pieces_of(int64_t entries) {
  return std::max<int64_t>(1, (entries + kPieceEntries - 1) / kPieceEntries);
}

int64_t state_floats(int64_t queries, int64_t head_dim) {
  return queries * (padded_head_dim(head_dim) + 2);
}

PagedState state_at(float* memory, int64_t queries, int64_t head_dim) {
  float* rest = memory + queries * padded_head_dim(head_dim);
  return {rest, rest + queries, memory};
}

const PagedKernels& kernels_of(CpuLevel level) {
  switch (level) {
    case CpuLevel::kAvx512:
      return avx512_paged_kernels();
    case CpuLevel::kAvx2:
      return avx2_paged_kernels();
    case CpuLevel::kPortable:
      break;
  }
  return portable_paged_kernels();
}

// One thread's memory for one tile.
struct Scratch {
  std::vector<float> q, total, next;
  std::vector<int64_t> visible, min_position;

  void fit(int64_t queries, int64_t head_dim) {
    const auto grow = [](auto& v, int64_t n) {
      if (static_cast<int64_t>(v.size()) < n) v.resize(static_cast<std::size_t>(n));
    };
    grow(q, queries * head_dim);
    grow(total, state_floats(queries, head_dim));
    grow(next, state_floats(queries, head_dim));
    grow(visible, queries);
    grow(min_position, queries);
  }
};

}  // namespace

struct PagedWorkspace::Data {
  std::vector<Item> items;
  std::vector<Split> splits;
  std::vector<float> states;
  std::unique_ptr<std::atomic<int64_t>[]> pending;  // [splits]: pieces not folded yet
  std::size_t pending_size = 0;
};

PagedWorkspace::PagedWorkspace() : data_(std::make_unique<Data>()) {}
PagedWorkspace::~PagedWorkspace() = default;
PagedWorkspace::PagedWorkspace(PagedWorkspace&&) noexcept = default;
PagedWorkspace& PagedWorkspace::operator=(PagedWorkspace&&) noexcept = default;

namespace {

class Runner {
 public:
  Runner(const PagedPool& pool, const PagedQueries& queries, PagedWorkspace::Data& data,
         const PagedKernels& kernels)
      : pool_(pool), queries_(queries), data_(data), kernels_(kernels) {}

  // Lays out the work; returns its multiply-adds.
  int64_t plan(std::span<const PagedRow> rows) {
    data_.items.clear();
    data_.splits.clear();
    const int64_t tile = std::max<int64_t>(1, kTargetQueries / queries_.group);
    int64_t states = 0;
    int64_t work = 0;
    for (const PagedRow& row : rows) {
      const int64_t pieces = pieces_of(row.length);
      work += row.length * row.num_tokens * queries_.group * pool_.head_dim * 2;
      if (row.num_tokens > tile || pieces == 1) {
        for (int64_t first = 0; first < row.num_tokens; first += tile)
          data_.items.push_back(
              {&row, first, std::min(tile, row.num_tokens - first), kAllPieces, 0});
      } else if (row.num_tokens > 0) {
        const auto split = static_cast<int64_t>(data_.splits.size());
        for (int64_t piece = 0; piece < pieces; ++piece)
          data_.items.push_back({&row, 0, row.num_tokens, piece, split});
        data_.splits.push_back({pieces, states});
        states += pieces * state_floats(row.num_tokens * queries_.group, pool_.head_dim);
      }
    }
    prepare_splits(states);
    return work;
  }

  void run(const Item& item) {
    thread_local Scratch scratch;
    const int64_t n = item.count * queries_.group;
    scratch.fit(n, pool_.head_dim);
    load_queries(item, scratch);
    if (item.piece == kAllPieces) {
      run_tile(item, scratch);
    } else {
      run_piece(item, scratch);
    }
  }

 private:
  void prepare_splits(int64_t states) {
    if (static_cast<int64_t>(data_.states.size()) < states)
      data_.states.resize(static_cast<std::size_t>(states));
    if (data_.pending_size < data_.splits.size()) {
      data_.pending_size = data_.splits.size() * 2;
      data_.pending = std::make_unique<std::atomic<int64_t>[]>(data_.pending_size);
    }
    for (std::size_t i = 0; i < data_.splits.size(); ++i)
      data_.pending[i].store(data_.splits[i].pieces, std::memory_order_relaxed);
  }

  // Entries that token t of the row sees, before any window.
  static int64_t end_of(const PagedRow& row, int64_t t) {
    return std::clamp<int64_t>(row.length - row.num_tokens + t + 1, 0, row.length);
  }

  // Packs the tile's queries, scaled for exponentials to base 2.
  void load_queries(const Item& item, Scratch& scratch) const {
    const int64_t head_dim = pool_.head_dim;
    const auto scale = static_cast<float>(queries_.scale * std::numbers::log2e);
    float* to = scratch.q.data();
    for (int64_t t = 0; t < item.count; ++t) {
      const int64_t token = item.row->first_token + item.first + t;
      const float* from =
          queries_.q + (token * queries_.num_heads + item.row->kv_head * queries_.group) * head_dim;
      for (int64_t i = 0; i < queries_.group * head_dim; ++i) *to++ = from[i] * scale;
      if (queries_.window > 0) load_window(item, t, scratch);
    }
  }

  void load_window(const Item& item, int64_t t, Scratch& scratch) const {
    const int64_t own = end_of(*item.row, item.first + t) - 1;  // the token's own entry
    int64_t oldest = 0;
    if (own >= 0)
      oldest = pool_.positions[item.row->blocks[own / kSlots] * kSlots + own % kSlots] -
               queries_.window + 1;
    for (int64_t h = 0; h < queries_.group; ++h)
      scratch.min_position[static_cast<std::size_t>(t * queries_.group + h)] = oldest;
  }

  void fold(const Item& item, int64_t piece, Scratch& scratch, const PagedState& state) const {
    const int64_t n = item.count * queries_.group;
    for (int64_t i = 0; i < n; ++i)
      scratch.visible[static_cast<std::size_t>(i)] =
          std::min(kPieceEntries,
                   end_of(*item.row, item.first + i / queries_.group) - piece * kPieceEntries);
    const PagedPiece args = {&pool_,
                             item.row->blocks + piece * kPieceBlocks,
                             (item.row->length + kSlots - 1) / kSlots - piece * kPieceBlocks,
                             n,
                             scratch.q.data(),
                             scratch.visible.data(),
                             queries_.window > 0 ? scratch.min_position.data() : nullptr};
    kernels_.fold(args, state);
  }

  void run_tile(const Item& item, Scratch& scratch) const {
    const int64_t n = item.count * queries_.group;
    const PagedState total = state_at(scratch.total.data(), n, pool_.head_dim);
    const PagedState next = state_at(scratch.next.data(), n, pool_.head_dim);
    const int64_t pieces = pieces_of(end_of(*item.row, item.first + item.count - 1));
    fold(item, 0, scratch, total);
    for (int64_t piece = 1; piece < pieces; ++piece) {
      fold(item, piece, scratch, next);
      kernels_.merge(n, pool_.head_dim, total, next);
    }
    store(item, total);
  }

  void run_piece(const Item& item, Scratch& scratch) const {
    const int64_t n = item.count * queries_.group;
    const int64_t size = state_floats(n, pool_.head_dim);
    const Split& split = data_.splits[static_cast<std::size_t>(item.split)];
    float* states = data_.states.data() + split.state;
    fold(item, item.piece, scratch, state_at(states + item.piece * size, n, pool_.head_dim));
    // The last to arrive sees what all the others wrote.
    if (data_.pending[static_cast<std::size_t>(item.split)].fetch_sub(
            1, std::memory_order_acq_rel) != 1)
      return;
    const PagedState total = state_at(states, n, pool_.head_dim);
    for (int64_t piece = 1; piece < split.pieces; ++piece)
      kernels_.merge(n, pool_.head_dim, total, state_at(states + piece * size, n, pool_.head_dim));
    store(item, total);
  }

  void store(const Item& item, const PagedState& total) const {
    const int64_t head_dim = pool_.head_dim;
    const int64_t stride = padded_head_dim(head_dim);
    for (int64_t i = 0; i < item.count * queries_.group; ++i) {
      const int64_t token = item.row->first_token + item.first + i / queries_.group;
      const int64_t head = item.row->kv_head * queries_.group + i % queries_.group;
      float* to = queries_.out + (token * queries_.num_heads + head) * head_dim;
      const float* from = total.acc + i * stride;
      const float factor = total.sum[i] == 0.0F ? 0.0F : 1.0F / total.sum[i];
      for (int64_t d = 0; d < head_dim; ++d) to[d] = from[d] * factor;
    }
  }

  const PagedPool& pool_;
  const PagedQueries& queries_;
  PagedWorkspace::Data& data_;
  const PagedKernels& kernels_;
};

}  // namespace

void paged_attention(const PagedPool& pool, std::span<const PagedRow> rows,
                     const PagedQueries& queries, PagedWorkspace& workspace, CpuLevel level) {
  PagedWorkspace::Data& data = workspace.data();
  Runner runner(pool, queries, data, kernels_of(level));
  const int64_t work = runner.plan(rows);
  const auto items = static_cast<int64_t>(data.items.size());
  const int64_t grain = work < kSerialWork ? std::max<int64_t>(1, items) : 1;
  parallel_for(0, items, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) runner.run(data.items[static_cast<std::size_t>(i)]);
  });
}

}  // namespace coppice::ops
