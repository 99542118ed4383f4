// How long a frozen model still needs each KV entry: labels for gates, from one sweep over the
// attention of a teacher's layer.
//
// The utility of entry i for query t, of one KV head (docs/maths.md 20):
//
//   kLeaveOneOut     k max over the group of P / (1 - P + 1e-3) sqrt(|W o|^2 + |W v|^2) / |r|
//   kAttentionValue  k max over the group of P |W v| / |r|
//   kAttention       k max over the group of P
//
// with P the softmax weight of i for t, o the query head's output, v the entry's value, W the query
// head's part of the output projection, r the residual stream at t before the layer's input norm,
// and k the sensitivity of the KV head. Removing one key from a softmax moves its output by exactly
// P / (1 - P) (o - v); the first form bounds that without a second product.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace coppice::ops {

enum class NeedUtility { kLeaveOneOut, kAttentionValue, kAttention };

struct NeedInput {
  at::Tensor q;                         // [N, Hq, D], rotated
  at::Tensor k;                         // [N, Hkv, D], rotated
  at::Tensor v;                         // [N, Hkv, D]
  at::Tensor output_weight;             // [C, Hq D] of the output projection; unused by kAttention
  at::Tensor residual_norm;             // [N] float32, |r|; unused by kAttention
  at::Tensor sensitivity;               // [Hkv] float32; undefined is 1
  std::span<const int64_t> cu_seqlens;  // as in retention_attention
  // One position per document that stands for all its cuts: of a text that is repeated behind
  // itself, where the repetition begins, so that `cuts` says what it looks at. Empty: cuts at
  // quarters.
  std::span<const int64_t> cut_at = {};
  double scale = 1.0;  // of the logits
  NeedUtility utility = NeedUtility::kLeaveOneOut;
};

// Age bin b holds ages 4 2^b .. 4 2^(b+1) - 1; the last one all from 2,048 on. Ages below 4 are in
// none.
inline constexpr int64_t kNeedAges = 10;
// Cut c lies before position (c + 1) S / 4 (rounded down) of a document of S tokens, unless cut_at
// says otherwise.
inline constexpr int64_t kNeedCuts = 3;
inline constexpr float kNeedFloor = -30.0F;

// Natural logs of the largest utility, at least kNeedFloor, which also stands for "no such query".
// Which ages a document shows of an entry, and which entries a cut divides, follows from positions.
struct NeedLabels {
  at::Tensor ages;  // [N, Hkv, kNeedAges] float32: over the queries whose age is in the bin
  at::Tensor cuts;  // [N, Hkv, kNeedCuts] float32: of entries before the cut, over queries after it
};

// Records no gradient. Memory O(N). Float32 and bfloat16 on a CPU with AVX-512 run kernels of ours,
// with the same bits for any number of threads; everything else need_labels_reference. Throws
// kInvalidArgument on shapes that disagree.
NeedLabels need_labels(const NeedInput& input);

// The same in ATen operations on blocks of queries: any device and floating dtype.
NeedLabels need_labels_reference(const NeedInput& input);

}  // namespace coppice::ops
