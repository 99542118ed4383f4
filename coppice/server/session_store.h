// Saved sessions in one folder: DIR/NAME.session (session_file.h).
//
// A file is written beside its place, synced and renamed, so that a name stands for a whole file or
// for none, whatever ends the process or fills the disk. What a killed process left is removed at
// the next start and never read. Names are 1 to 64 letters, digits, _ and -: no name is a path. The
// files of all sessions together hold at most `max_bytes`; nothing is removed to make room.
//
// Thread-safe; one call at a time works, so one image at a time is held outside the pool.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "coppice/engine/session_image.h"

namespace coppice {

struct SessionStoreConfig {
  std::string folder;  // made where there is none
  int64_t max_bytes = 0;
  std::string settings;          // see session_file.h
  std::vector<at::Tensor> like;  // KvCache::image_like() of the engine
};

class SessionStore final {
 public:
  // Throws kInvalidArgument: no folder that can be used.
  explicit SessionStore(const SessionStoreConfig& config);

  struct Entry {
    std::string name;
    int64_t bytes = 0;
    int64_t created = 0;  // seconds since 1970
  };

  void check_name(const std::string& name) const { path_of(name); }
  // All of these throw ApiError: 400 for a name that is none, 404, 507 where the disk or max_bytes
  // is full, 409 for a file that is damaged or foreign.
  Entry save(const std::string& name, const SessionImage& image);
  SessionImage load(const std::string& name);
  void remove(const std::string& name);
  std::vector<Entry> list();  // by name

 private:
  std::string path_of(const std::string& name) const;

  const SessionStoreConfig config_;
  std::mutex mutex_;
};

}  // namespace coppice
