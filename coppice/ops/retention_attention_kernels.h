// What retention_attention.cpp chooses between: ATen operations on blocks, and tile kernels of the
// sibling files for each instruction set.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace coppice::ops {

// Arguments as retention_attention checks them: all contiguous, log_beta float32 (float64 for
// float64 input).
struct RetentionInput {
  at::Tensor q;         // [N, Hq, D]
  at::Tensor k;         // [N, Hkv, D]
  at::Tensor v;         // [N, Hkv, D]
  at::Tensor log_beta;  // [N, Hkv]
  std::span<const int64_t> cu_seqlens;
  double scale;
  at::Tensor pressure{};  // [N], type of log_beta: keys fade by the cut; undefined: by beta^age
  int64_t squarings = 0;  // of the cut: its sharpness is 2^squarings

  bool has_cut() const { return pressure.defined(); }
  double sharpness() const { return static_cast<double>(int64_t{1} << squarings); }
};

struct RetentionOutput {
  at::Tensor out;  // [N, Hq, D], dtype of q
  at::Tensor lse;  // [N, Hq], dtype of log_beta: natural log of the sum of exp(a)
};

struct RetentionGradients {
  at::Tensor q, k, v;   // as the input's
  at::Tensor log_beta;  // [N, Hkv]
  at::Tensor pressure;  // [N]; undefined without a cut
};

// to.log_beta and `pressure` [N] hold sums of slope times y / (1 + y); makes both gradients of
// them.
void finish_cut_gradients(const RetentionInput& input, const at::Tensor& pressure,
                          RetentionGradients& to);

// ATen operations on blocks of queries: any device and floating dtype.
RetentionOutput retention_forward_blocks(const RetentionInput& input);
RetentionGradients retention_backward_blocks(const RetentionInput& input,
                                             const RetentionOutput& output,
                                             const at::Tensor& gradient);

// Tile kernels on the CPU. REQUIRES: has_retention_tiles(input).
bool has_retention_tiles(const RetentionInput& input);
RetentionOutput retention_forward_tiles(const RetentionInput& input);
RetentionGradients retention_backward_tiles(const RetentionInput& input,
                                            const RetentionOutput& output,
                                            const at::Tensor& gradient);

// Tiles are squares of 64 queries and 64 keys, on one grid from the first token of the document.
// Products contract over units: one float, or a pair of neighbouring bfloat16. A matrix to contract
// over the head's width is kept as rows ("rows", units along the width); one to contract over
// tokens as "units": token pairs side by side (float: the same as rows).
//
//   rows   [tokens, P]            x[t][0] x[t][1] | x[t][2] x[t][3] | ...
//   units  [tokens / 2, P] pairs  x[t][0] x[t+1][0] | x[t][1] x[t+1][1] | ...
//
// with P the width padded to a whole vector of 16; tokens padded to whole tiles; padding is zero.
inline constexpr int64_t kRetentionTile = 64;
inline int64_t retention_tiles(int64_t tokens) {
  return (tokens + kRetentionTile - 1) / kRetentionTile;
}
inline int64_t padded_width(int64_t width) { return (width + 15) / 16 * 16; }

// With a cut, a key whose y has come to this is gone: its weight is zero.
inline constexpr float kCutEnd = 4096.0F;

// The keys of one document and KV head.
struct RetentionKeys {
  int64_t tokens, width;
  const void* k_rows;
  const void* k_units;  // backward only
  const void* v_rows;   // backward only
  const void* v_units;  // forward only
  const float* fade;    // [tokens, padded]: log beta times log2(e); with a cut |log beta|
  const void* k;        // [tokens, width], as they are
  const void* v;        // [tokens, width]
  int64_t stride;       // of k and v, in elements
};

// The queries of one document and query head. Strides in elements.
struct RetentionQueries {
  const void* q;  // [tokens, width]
  int64_t q_stride;
  float scale;  // of the logits
  void* out;    // forward: written
  int64_t out_stride;
  float* lse;  // forward: written; backward: read
  int64_t lse_stride;
  const float* pressure;  // [tokens]; with a cut
  int64_t squarings;
};

// Sums of one document and query head over some of its queries.
struct RetentionSums {
  const void* given;  // gradient of out, strides as out's
  const void* out;
  void* q;          // gradient of q of these queries, strides as q's
  float* k;         // [tokens, padded; P]: of keys up to the last of these queries
  float* v;         // [tokens, padded; P]
  float* log_beta;  // [tokens, padded]; with a cut of slope y / (1 + y)
  float* pressure;  // [tokens], of these queries; with a cut, of the same
};

struct RetentionKernels {
  int64_t element_bytes;
  // x [tokens, width] with a stride -> rows and units, either of which may be null.
  void (*pack)(const void* x, int64_t stride, int64_t tokens, int64_t width, void* rows,
               void* units);
  void (*forward)(const RetentionKeys& keys, const RetentionQueries& queries, int64_t tile);
  // Queries of tiles [begin, end).
  void (*backward)(const RetentionKeys& keys, const RetentionQueries& queries, int64_t begin,
                   int64_t end, const RetentionSums& sums);
};

// By beta^age, or by the cut. Null where this processor lacks the instructions.
const RetentionKernels* float_retention_kernels(bool cut);     // AVX-512
const RetentionKernels* bfloat16_retention_kernels(bool cut);  // AVX-512 with BF16

}  // namespace coppice::ops
