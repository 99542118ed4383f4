// Rounds float32 rows to the 8-bit storage type Q8_0: one float16 scale per 32 values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace coppice::ops {

// values [rows, cols] -> the bytes of a Q8_0 tensor of that shape. The error of a value is at most
// half the scale, which is the smallest float16 number not below 1/127 of the largest of the 32.
// Throws kInvalidArgument unless cols is a multiple of 32, every value is finite and none exceeds
// what a float16 scale reaches.
std::vector<std::byte> encode_q8(const float* values, int64_t rows, int64_t cols);

}  // namespace coppice::ops
