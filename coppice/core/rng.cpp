#include "coppice/core/rng.h"

namespace coppice {

uint64_t Rng::entropy_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace coppice
