// The weights of a Hugging Face folder: one model.safetensors, or the shards that
// model.safetensors.index.json names and no other file.
#pragma once

#include <string>
#include <vector>

#include "coppice/loader/safetensors_file.h"

namespace coppice {

struct ShardedWeights {
  ShardedWeights() = default;
  ShardedWeights(ShardedWeights&&) = default;  // move-only: `items` points into `files`
  ShardedWeights& operator=(ShardedWeights&&) = default;

  std::vector<SafetensorsFile> files;  // in the order of their names
  // Every tensor once, with the file that holds it; in the order of names.
  struct Item {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
  };
  std::vector<Item> items;
};

// Throws kNotFound when the folder has no weights or a named shard is missing, kInvalidArgument
// when the index is malformed, names a path outside the folder, or promises a tensor its shard
// lacks.
ShardedWeights open_weights(const std::string& folder);

}  // namespace coppice
