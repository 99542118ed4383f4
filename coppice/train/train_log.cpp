#include "coppice/train/train_log.h"

#include <fstream>
#include <span>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/core/log.h"
#include "coppice/loader/safetensors_file.h"

namespace coppice {
namespace {

int64_t step_of(const Json& record) {
  const auto at = record.find("step");
  return at != record.end() && at->is_number_integer() ? at->get<int64_t>() : 0;
}

}  // namespace

TrainLog::TrainLog(std::string path, int64_t steps) : path_(std::move(path)) {
  std::string kept;
  if (steps > 0)
    for (const Json& record : read_log(path_))
      if (step_of(record) <= steps) kept += dump_json(record) + "\n";
  const auto bytes = std::as_bytes(std::span(kept));
  try {
    write_file_atomically(path_, std::span(&bytes, 1));
  } catch (const Error& error) {
    log_warning("training log: {}", error.what());
    warned_ = true;
  }
}

void TrainLog::write(const Json& record) {
  std::ofstream file(path_, std::ios::app);
  file << dump_json(record) << "\n";
  file.close();
  if (file || warned_) return;
  log_warning("cannot write {}; lines of the log are lost", path_);
  warned_ = true;
}

std::vector<Json> read_log(const std::string& path) {
  std::vector<Json> records;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    try {
      Json record = parse_json(line, path);
      if (record.is_object()) records.push_back(std::move(record));
    } catch (const Error&) {
      continue;  // cut off
    }
  }
  return records;
}

}  // namespace coppice
