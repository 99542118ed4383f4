// The record of a training run: one JSON object a line.
//
// A resumed run takes off what was logged after the state it goes on from, so that the file reads
// as if the run had never stopped. A line that cannot be written (a full disk) is lost with one
// warning; the run goes on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coppice/core/json.h"

namespace coppice {

class TrainLog final {
 public:
  // Keeps the lines whose "step" is at most `steps`; 0 begins anew. A last line that was cut off by
  // the end of its process goes too.
  TrainLog(std::string path, int64_t steps);

  void write(const Json& record);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool warned_ = false;
};

// The records of a log; lines that are not whole are passed over.
std::vector<Json> read_log(const std::string& path);

}  // namespace coppice
