// Hashes of model files, remembered between runs: reading all of a model only to find its gate
// would take seconds for a large one.
//
// $COPPICE_CACHE/hashes.json maps what the system says of the weight files (device, inode, size,
// time of the last change in nanoseconds) to their hash. A file that was written to has another
// time, so it is read anew. A cache that cannot be read or written is passed over.
#pragma once

#include <string>

#include "coppice/loader/checkpoint.h"

namespace coppice {

// The checkpoint's hash, from memory or by reading its files; checkpoint.sha256() knows it from
// then on.
const std::string& find_sha256(Checkpoint& checkpoint);

// A gate's file, or the files of its folder, by content; read each time, for gates are small.
std::string sha256_of_gate(const std::string& path);

}  // namespace coppice
