// The input of one forward pass: the new tokens of several sequences, packed without padding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace coppice {

// What an entry came from. Kept per KV entry, so that budgets and studies can tell modalities
// apart.
enum class Modality : uint8_t { kText = 0, kImage = 1, kVideo = 2 };

struct Batch {
  // Exactly one of the two is defined.
  at::Tensor token_ids;  // [N] int64
  // [N, C], and for models that take more than the first layer's input: further [C] for the layers
  // behind it, zeros for text (ModelArgs::embedding_width)
  at::Tensor embeddings;

  // Rotary positions: [N] int64, or [3, N] (time, height, width) for models with three-part
  // positions.
  at::Tensor positions;
  // [N] uint8, of Modality; undefined means all text.
  at::Tensor modality;

  // Sequence b owns the packed tokens cu_seqlens[b] .. cu_seqlens[b + 1] - 1. Each id stands once.
  std::vector<int64_t> sequence_ids;  // [B], what the backend knows the sequence by
  std::vector<int64_t> cu_seqlens;    // [B + 1], from 0 to N

  int64_t num_tokens() const { return cu_seqlens.empty() ? 0 : cu_seqlens.back(); }
  int64_t num_sequences() const { return static_cast<int64_t>(sequence_ids.size()); }
};

// Throws kInvalidArgument when the parts disagree in size, offsets do not rise, or an id repeats.
void validate(const Batch& batch);

}  // namespace coppice
