// The text side of a checkpoint: its tokenizer and its chat template.
#pragma once

#include "coppice/loader/checkpoint.h"
#include "coppice/processor/tokenizer.h"

namespace coppice {

// From the GGUF metadata or from tokenizer.json. Throws as Tokenizer's factories do, and kNotFound
// when the model brings no tokenizer.
Tokenizer load_tokenizer(const Checkpoint& checkpoint);

// Every token that ends an answer: what the model's files name and what the vocabulary knows.
std::vector<int64_t> end_token_ids(const Checkpoint& checkpoint, const Tokenizer& tokenizer);

}  // namespace coppice
