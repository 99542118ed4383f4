// Results on disk, one JSON object a line, that grow row by row and outlive being killed.
//
//   {"evaluation": {..}}     what all rows depend on: model, gate and data by hash, options
//   {..}                     a row
//
// A row is complete or absent: it goes out in one write, and what a kill left of a last line is cut
// off when the file is opened again. A file of another configuration is refused, so rows of two
// never stand in one file. Holds a lock on the file while open: a second writer is refused. The
// lines after the first may be read with any JSON-lines reader that passes over the first.
#pragma once

#include <string>
#include <vector>

#include "coppice/core/json.h"

namespace coppice {

class RecordFile final {
 public:
  // Opens `path` to go on, or makes it. `config` is a flat object. `restart`: begins anew where the
  // file holds results, whatever their configuration. Throws kInvalidArgument for a file that holds
  // something else, that holds results of another configuration (naming what differs), that is in
  // use, or a line that is no JSON object; kNotFound when it cannot be opened. A refused file is as
  // it was.
  static RecordFile open(const std::string& path, const Json& config, bool restart = false);
  // The whole rows of a file of results, whatever its configuration, without a lock: a line that is
  // being written is left out. Throws kInvalidArgument as open() and kNotFound.
  static std::vector<Json> read(const std::string& path);
  RecordFile(RecordFile&& other) noexcept;
  RecordFile& operator=(RecordFile&& other) noexcept;
  ~RecordFile();

  const std::string& path() const { return path_; }
  const std::vector<Json>& rows() const { return rows_; }  // in the order of the file
  // Throws kCapacity when the disk does not take it; the file is then as before.
  void append(const Json& row);

 private:
  RecordFile() = default;
  void load(const Json& config, bool restart);
  void write(const std::string& line);

  std::string path_;
  int fd_ = -1;
  int64_t bytes_ = 0;
  std::vector<Json> rows_;
};

}  // namespace coppice
