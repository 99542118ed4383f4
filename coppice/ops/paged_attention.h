// Attention of a pass's new tokens over ragged rows of a paged pool, on the CPU: raw pointers, no
// cache, no tensor. Decode (one token a row) and prefill chunks alike.
//
//   block: keys [D, 16] dimension-major, values [16, D], positions [16]
//   row:   block ids and a length; its last T entries belong to the T new tokens, in order, so
//   token
//          t sees the entries [0, length - T + t], and of these, with a window, the ones whose
//          position is less than `window` below its own
//
// Rows are cut into pieces of kPieceEntries. A piece is folded by itself; pieces are merged in
// order (docs/maths.md, equation 7). Cuts depend on nothing but an entry's place in its row, so a
// result is the same bit for bit whatever the other rows, the chunking and the number of threads
// are. Products and sums are float32 whatever the pool holds. A token that sees nothing gets zeros.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "coppice/ops/cpu_features.h"

namespace coppice::ops {

inline constexpr int64_t kSlots = 16;          // of a block
inline constexpr int64_t kPieceEntries = 256;  // a multiple of kSlots

enum class PoolType : uint8_t { kF32, kF16, kBF16 };

struct PagedPool {
  const void* keys = nullptr;          // [blocks, D, 16]
  const void* values = nullptr;        // [blocks, 16, D]
  const int32_t* positions = nullptr;  // [blocks, 16]; read with a window alone
  PoolType type = PoolType::kF32;
  int64_t head_dim = 0;  // D
};

// One KV head of one sequence.
struct PagedRow {
  const int32_t* blocks = nullptr;  // entry i sits in blocks[i / 16], slot i % 16
  int64_t length = 0;               // entries, the new tokens' own included
  int64_t first_token = 0;          // packed index of the row's first new token
  int64_t num_tokens = 0;           // T
  int64_t kv_head = 0;              // read by the query heads kv_head x group .. + group - 1
};

struct PagedQueries {
  const float* q = nullptr;  // [N, Hq, D]
  float* out = nullptr;      // [N, Hq, D]
  int64_t num_heads = 0;     // Hq
  int64_t group = 1;         // query heads per KV head
  double scale = 1.0;        // of the logits
  int64_t window = 0;        // positions a query sees, its own included; 0 is all
};

// Memory that calls reuse. One call at a time may use it. It only grows.
class PagedWorkspace final {
 public:
  PagedWorkspace();
  ~PagedWorkspace();
  PagedWorkspace(PagedWorkspace&&) noexcept;
  PagedWorkspace& operator=(PagedWorkspace&&) noexcept;

  struct Data;
  Data& data() { return *data_; }

 private:
  std::unique_ptr<Data> data_;
};

// REQUIRES: block ids inside the pool, tokens inside [0, N), level available, no two rows with the
// same token and KV head.
void paged_attention(const PagedPool& pool, std::span<const PagedRow> rows,
                     const PagedQueries& queries, PagedWorkspace& workspace,
                     CpuLevel level = cpu_level());

}  // namespace coppice::ops
