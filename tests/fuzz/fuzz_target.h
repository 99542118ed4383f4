// What a fuzz target gives to the driver. One source per parser defines both functions; add it with
// coppice_fuzz() in CMakeLists.txt. LLVMFuzzerTestOneInput has libFuzzer's signature, so the same
// source also links with clang's -fsanitize=fuzzer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Feeds one input to the parser. Returns 0; catches coppice::Error, which is a right answer to a
// bad input. Any other exception, a signal or a sanitizer report is a fault.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size);

// Small valid inputs to start from, and invalid ones worth keeping.
std::vector<std::string> fuzz_seeds();
