#include "coppice/ops/cpu_features.h"

#include <array>
#include <atomic>
#include <cstdlib>

#include "coppice/core/error.h"

namespace coppice::ops {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"portable", "avx2", "avx512"};

CpuLevel chosen_level() {
  const char* name = std::getenv("COPPICE_CPU");
  const CpuLevel best = detected_cpu_level();
  if (name == nullptr || *name == '\0') return best;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] != name) continue;
    const auto level = static_cast<CpuLevel>(i);
    if (level > best) {
      fail_argument("COPPICE_CPU: this processor lacks '{}', its best is '{}'", name,
                    cpu_level_name(best));
    }
    return level;
  }
  fail_argument("COPPICE_CPU: expected portable, avx2 or avx512, got '{}'", name);
}

std::atomic<CpuLevel>& current_level() {
  static std::atomic<CpuLevel> level{chosen_level()};
  return level;
}

}  // namespace

CpuLevel detected_cpu_level() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("f16c")) {
    return CpuLevel::kPortable;
  }
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  return avx512 ? CpuLevel::kAvx512 : CpuLevel::kAvx2;
#else
  return CpuLevel::kPortable;
#endif
}

CpuLevel cpu_level() { return current_level().load(std::memory_order_relaxed); }

std::string_view cpu_level_name(CpuLevel level) { return kNames[static_cast<std::size_t>(level)]; }

void set_cpu_level(CpuLevel level) {
  if (level > detected_cpu_level()) {
    fail_argument("processor level: this processor lacks '{}', its best is '{}'",
                  cpu_level_name(level), cpu_level_name(detected_cpu_level()));
  }
  current_level().store(level);
}

}  // namespace coppice::ops
