// Random numbers that are the same on every machine for one seed: the bits come from
// std::mt19937_64, whose output the standard fixes, and the mapping to a unit interval is ours
// (std::uniform_* is not fixed). Not for secrets. Not thread-safe: one Rng per sequence.
#pragma once

#include <cstdint>
#include <random>

namespace coppice {

class Rng final {
 public:
  explicit Rng(uint64_t seed) : engine_(seed) {}
  // Uniform in [0, 1), on the grid of 2^-53.
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1.0p-53; }
  // Uniform in [0, n). REQUIRES: n > 0. The bias is below n / 2^64.
  uint64_t below(uint64_t n) { return engine_() % n; }
  // A seed nobody chose, for requests that name none.
  static uint64_t entropy_seed();

 private:
  std::mt19937_64 engine_;
};

// A number that depends on its arguments alone, well mixed: for choices that must be repeatable.
uint64_t mix_seed(uint64_t seed, uint64_t a, uint64_t b = 0);

}  // namespace coppice
