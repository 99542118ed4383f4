// Unpacks stored weights to float32: the plain types and GGUF's block types, value for value as the
// formats define them. Every other reader of packed weights is tested against this one.
//
// A row is a whole number of blocks; each block holds its own scales. Block layouts are drawn in
// dequantize.cpp. Source: the GGUF specification and the ggml block definitions, checked against
// the Python package `gguf` (tools/make_quant_golden.py). Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "coppice/core/stored_tensor.h"

namespace at {
class Tensor;
}

namespace coppice::ops {

// Unpacks consecutive blocks of one type. `out` holds out.size() values of which the bytes are
// exactly `bytes`; neither needs any alignment beyond its type's own.
// Throws kInvalidArgument when the sizes do not fit each other.
void dequantize_row(StorageType type, std::span<const std::byte> bytes, std::span<float> out);

// The whole tensor, float32 of the stored shape, on the CPU; rows are spread over ATen's threads.
// Throws kInvalidArgument when `tensor.bytes` is not what its shape and type need.
at::Tensor dequantize(const StoredTensor& tensor);

}  // namespace coppice::ops
