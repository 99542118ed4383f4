// Kernels of need_labels.cpp on the CPU, one file per Element (tile_products_inl.h). Tiles are
// those of retention_attention_kernels.h.
#pragma once

#include <cstdint>

#include "coppice/ops/need_labels.h"

namespace coppice::ops {

// utility^2 = f(P)^2 (of_query + of_entry) weight; f(P) is P, or P / (1 - P + 1e-3) with `odds`.
// Tables are [padded tokens of the document] and begin at its first token.
struct NeedHead {         // of one document and query head
  const void* lanes;      // [tiles][P / kPer, 64] units of q
  const float* lse;       // log2; +inf where there is no query
  const float* of_query;  // times `weight` already
  const float* weight;
  const float* of_entry;
};

struct NeedTask {  // one tile of keys of one document and KV head
  int64_t tile, tokens;
  const void* k;  // the document's first key, [tokens, D] with a stride
  int64_t k_stride, width;
  float scale;
  bool odds;
  const NeedHead* heads;  // of the group
  int64_t group;
  const int64_t* cuts;  // [kNeedCuts + 2]: 0, the cuts, the end
};

// Slots of a key: the age bins, then for the queries between two cuts (or the last and the end).
inline constexpr int64_t kNeedSlots = kNeedAges + kNeedCuts;

struct NeedKernels {
  int64_t element_bytes;
  // x [tokens, D] with a stride -> [tiles][P / kPer, 64] units.
  void (*pack)(const void* x, int64_t stride, int64_t tokens, int64_t width, void* lanes);
  // most [64, kNeedSlots]: the largest utility^2 of each key, 0 where there was no query.
  void (*sweep)(const NeedTask& task, float* most);
};

// Null where this processor lacks the instructions.
const NeedKernels* float_need_kernels();     // AVX-512
const NeedKernels* bfloat16_need_kernels();  // AVX-512 with BF16

}  // namespace coppice::ops
