// Which kernels this processor can run. Ordered: each level can run all kernels below it.
#pragma once

#include <string_view>

namespace coppice::ops {

enum class CpuLevel {
  kPortable,  // plain C++
  kAvx2,      // AVX2, FMA, F16C
  kAvx512,    // AVX-512 F, BW, VL, VNNI
};

// What the kernels use: the best level of the processor, unless COPPICE_CPU names a lower one
// ("portable", "avx2", "avx512"); read once. An unknown name or a level that the processor lacks
// throws kInvalidArgument at the first use.
CpuLevel cpu_level();

// The best level that the processor itself offers.
CpuLevel detected_cpu_level();

std::string_view cpu_level_name(CpuLevel level);

// For tests and benchmarks: replaces what cpu_level() returns. REQUIRES: not above
// detected_cpu_level(), no product running. Throws kInvalidArgument otherwise.
void set_cpu_level(CpuLevel level);

}  // namespace coppice::ops
