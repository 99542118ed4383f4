// How a training run shows where it is: a bar on a terminal, lines elsewhere; both on stderr.
#pragma once

#include <chrono>
#include <cstdint>

#include "coppice/core/json.h"

namespace coppice {

class Progress final {
 public:
  explicit Progress(int64_t steps);

  // `done` steps lie behind; `parameters` are trained; `manifest` lists the data files.
  void begin(int64_t done, int64_t parameters, const Json& manifest);
  void show(const Json& record);
  void show_evaluation(int64_t step, const Json& found);

 private:
  int64_t steps_;
  int64_t first_ = 0;  // step of this session
  bool terminal_;
  std::chrono::steady_clock::time_point start_, shown_;
};

}  // namespace coppice
