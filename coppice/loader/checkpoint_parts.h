// What the readers of the two formats hand to Checkpoint. Internal to loader/.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coppice/loader/checkpoint.h"
#include "coppice/loader/gguf_file.h"
#include "coppice/loader/sharded.h"

namespace coppice {

struct CheckpointTensor {
  TensorInfo info;
  // The data as a weight; bytes are empty when the dtype cannot be one.
  StoredTensor stored;
  // Rows of this many heads stand interleaved and must be put into halves order; 0 for none.
  int64_t interleaved_heads = 0;
};

struct CheckpointParts {
  std::string path;
  std::string format;
  std::string model_name;  // for people; may be empty
  std::optional<GgufFile> gguf;
  ShardedWeights weights;  // of a folder
  Json config;             // of the text model
  Json vision_config;      // null without a vision side
  Json image_processor;    // of processor_config.json, else preprocessor_config.json; or null
  GenerationDefaults generation;
  TokenizerSource tokenizer;  // `gguf` is set by Checkpoint, once the parts have their place
  std::map<std::string, std::string> chat_templates;
  std::map<std::string, CheckpointTensor, std::less<>> tensors;
};

CheckpointParts read_gguf_checkpoint(const std::string& path);
CheckpointParts read_folder_checkpoint(const std::string& path);

// config.json as GGUF metadata tell it. Throws kInvalidArgument for an architecture that is not
// supported, and for missing or impossible sizes.
Json config_from_gguf(const GgufFile& file);
GenerationDefaults generation_from_gguf(const GgufFile& file);
// Checkpoint name of a GGUF tensor; a name without a counterpart is returned as it is.
std::string checkpoint_name(std::string_view gguf_name);

// Appends ids that are not there yet from a value that is an id, a list of ids or null. `what`
// names it in messages.
void add_token_ids(const Json& value, std::string_view what, std::vector<int64_t>& ids);

}  // namespace coppice
