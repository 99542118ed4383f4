#include "coppice/ops/packed_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <utility>

#include "coppice/core/error.h"

namespace coppice::ops {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kLargePage = int64_t{2} << 20;
constexpr int64_t kSlabBytes = int64_t{32} << 20;
constexpr int64_t kSmallBytes = int64_t{64} << 10;  // below, a slab gains nothing
constexpr int64_t kMostBytes = int64_t{1} << 50;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

std::shared_ptr<uint8_t> allocate(int64_t bytes, int64_t alignment) {
  void* p = nullptr;
  if (bytes <= kMostBytes) {
    p = std::aligned_alloc(static_cast<std::size_t>(alignment),
                           static_cast<std::size_t>(round_up(bytes, alignment)));
  }
  if (p == nullptr) {
    fail(ErrorCode::kCapacity, "packed weights: no memory for {} bytes", bytes);
  }
  return {static_cast<uint8_t*>(p), [](uint8_t* memory) { std::free(memory); }};
}

std::shared_ptr<uint8_t> allocate_large(int64_t bytes) {
  std::shared_ptr<uint8_t> memory = allocate(bytes, kLargePage);
#ifdef MADV_HUGEPAGE
  // Advice: where the system refuses it, small pages serve as well.
  madvise(memory.get(), static_cast<std::size_t>(round_up(bytes, kLargePage)), MADV_HUGEPAGE);
#endif
  return memory;
}

// The slab that is being filled; weak, so that it goes when its matrices go.
struct Filling {
  std::mutex mutex;
  std::weak_ptr<uint8_t> slab;
  int64_t used = 0;
};

}  // namespace

std::shared_ptr<uint8_t> allocate_packed(int64_t bytes) {
  if (bytes < kSmallBytes) return allocate(bytes, kLine);
  if (bytes > kSlabBytes / 2) return allocate_large(bytes);
  static Filling filling;
  const std::lock_guard lock(filling.mutex);
  std::shared_ptr<uint8_t> slab = filling.slab.lock();
  if (slab == nullptr || kSlabBytes - filling.used < bytes) {
    slab = allocate_large(kSlabBytes);
    filling.slab = slab;
    filling.used = 0;
  }
  uint8_t* start = slab.get() + filling.used;
  filling.used += round_up(bytes, kLine);
  return {std::move(slab), start};
}

}  // namespace coppice::ops
