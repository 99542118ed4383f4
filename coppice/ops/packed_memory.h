// Memory for packed weights, laid side by side in large pages: one token reads all weights of a
// model in one go, and small pages would make the processor look up an address every few lines.
//
// Matrices of 64 KiB and more share slabs, which the system backs with large pages where it can; a
// slab goes back when the last matrix in it is gone. Only what is written becomes resident, rounded
// up to one large page per slab. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>

namespace coppice::ops {

// At least `bytes` (1 or more), aligned to 64 and not initialised. Throws kCapacity when memory
// does not suffice.
std::shared_ptr<uint8_t> allocate_packed(int64_t bytes);

}  // namespace coppice::ops
