// Kernels of distillation.cpp on the CPU, one file per Element (tile_products_inl.h). They work on
// one slice of the vocabulary at a time; what a slice adds up is its own, so a result does not
// depend on who works on it.
//
//   logits [V, M] float32: a row is a word, a lane a token; M the tokens padded to whole tiles
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "coppice/ops/distillation.h"

namespace coppice::ops {

// One chunk of tokens, all of which have a target.
struct DistillChunk {
  at::Tensor student, teacher;  // [tokens, C], contiguous; teacher undefined: no KL
  at::Tensor head;              // [V, C], contiguous
  at::Tensor targets;           // [tokens], contiguous
};

struct DistillSums {
  double kl = 0.0, ntp = 0.0;  // over tokens, in nats
  at::Tensor gradient;         // [tokens, C] of kl_weight KL + ntp_weight NTP, float32 or wider
};

// What is below, put together. Adds to `sums`; fills the gradient if asked.
// REQUIRES: has_distill_tiles(head).
bool has_distill_tiles(const at::Tensor& head);
void distill_chunk_tiles(const DistillChunk& chunk, const DistillOptions& options,
                         bool with_gradient, DistillSums& sums);

inline constexpr int64_t kDistillSlice = 2048;  // words

// Of the words [begin, end).
struct DistillSlice {
  int64_t begin, end;
  const void* head;  // [V, C] Stored; C a multiple of kPer
  int64_t width;     // C
  int64_t lanes;     // M, a multiple of 64
};

// Softmax of each token: its largest logit times log2(e), and the sum of 2^(logit log2(e) - max).
struct DistillState {
  float* max;  // [M]
  float* sum;  // [M]
};

struct DistillSlopes {
  const float* student;         // logits
  const float* teacher;         // logits; null: no KL
  const float* student_lse;     // [M] log2 of the sum of e^logit
  const float* teacher_lse;     // [M]
  const int64_t* targets;       // [M]; -1 where there is no token
  float kl_weight, ntp_weight;  // of the gradient
  float* kl;                    // [M]: KL in bits, of the slice's words
  float* gradient;  // [C, M] of the hidden states, of the slice's words; null: not wanted
};

struct DistillKernels {
  int64_t element_bytes, per_unit;
  // x [tokens, C] -> units [M / 64][C / kPer, 64].
  void (*pack)(const void* x, int64_t tokens, int64_t width, void* units);
  // Writes the slice's rows of `logits`, and its state.
  void (*logits)(const DistillSlice& slice, const void* units, float* logits,
                 const DistillState& state);
  void (*slopes)(const DistillSlice& slice, const DistillSlopes& slopes);
};

// Null where this processor lacks the instructions.
const DistillKernels* float_distill_kernels();     // AVX-512
const DistillKernels* bfloat16_distill_kernels();  // AVX-512 with BF16

}  // namespace coppice::ops
