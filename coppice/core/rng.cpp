#include "coppice/core/rng.h"

namespace coppice {
namespace {

// Mixes the bits of one number into another (the finaliser of SplitMix64).
uint64_t scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t mix_seed(uint64_t seed, uint64_t a, uint64_t b) {
  return scramble(scramble(scramble(seed) ^ a) ^ b);
}

uint64_t Rng::entropy_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace coppice
