// What a training run is made of, from its flags: data, first gate, and the records that tell runs
// apart.
#pragma once

#include <string>
#include <vector>

#include "apps/train_options.h"
#include "coppice/loader/checkpoint.h"
#include "coppice/loader/gate_checkpoint.h"
#include "coppice/processor/chat_template.h"
#include "coppice/processor/tokenizer.h"
#include "coppice/train/document_file.h"

namespace coppice {

struct TrainData {
  std::vector<DocumentFile> files;
  std::vector<double> weights;  // empty: by size
  Json manifest = Json::array();

  // What of it determines the run: the texts and their weights, wherever they lie.
  Json identity() const;
};

// Throws as DocumentFile::open, and kInvalidArgument unless all files have a weight or none.
TrainData open_data(const TrainOptions& options);

// --capacity and --capacity-ramp into options.distill. Throws kInvalidArgument.
void read_capacity(TrainOptions& options);
// Reads --budgets, LEAST:MOST, and what else stage 3 shares with stage 2.
void read_budgets(TrainOptions& options);

// Reads --teacher-cache-bytes. Throws kInvalidArgument for a stage that has no use for the cache.
void read_teacher_cache(TrainOptions& options);

// What --gate-kind and --stage come to: updates and tokens of options.repeat, and what a kind other
// than retention does not take. Throws kInvalidArgument.
void read_gate_kind(TrainOptions& options);

// What asks for the repetition of a text: the request in the model's chat template around it, or
// the request alone. `chat` may be null.
void set_repeat_request(RepeatTraining& repeat, const Tokenizer& tokenizer,
                        const ChatTemplate* chat);

// The gate of --init-from, or a new one. Throws when it does not fit the model.
GateWeights first_gate(const TrainOptions& options, const Checkpoint& checkpoint);

// Everything that determines a run besides what TrainerConfig holds.
Json run_identity(const TrainOptions& options, const TrainData& data, const Checkpoint& checkpoint,
                  const GateSpec& spec);

// The numbers of the last `count` steps, averaged, so that a record does not hang on one batch.
Json last_steps(const std::vector<Json>& records, std::size_t count);

// What the gate file says of how it came to be. `last` is of last_steps, `config` of
// TrainerConfig::json, `before` the record of the gate that --init-from names.
Json training_record(const TrainOptions& options, const TrainData& data, const Json& last,
                     const Json& config, const Json& before);

}  // namespace coppice
