// Saving and restoring conversations: what stands behind /v1/sessions.
//
// What is saved is the state after the last whole chunk of the text: a function of those tokens and
// the cache settings alone (snapshot_store.h). Restoring puts it among the snapshots, so whoever
// asks next with the same beginning goes on from it and gets what a server that never stopped would
// give. Thread-safe.
#pragma once

#include <functional>
#include <string>

#include "coppice/server/engine_loop.h"
#include "coppice/server/session_store.h"

namespace coppice {

class SessionService final {
 public:
  // Both must outlive it. `chunk_tokens`: the engine's.
  SessionService(EngineLoop& loop, SessionStore& store, int64_t chunk_tokens);

  // Reads what is not read yet of request.prompt, and stores the state. REQUIRES: request.eviction
  // has nothing unset. Throws ApiError: as the engine and the store refuse; 400 where the text is
  // shorter than a chunk or its policy keeps no states; 503 where the pool has no room now.
  Json save(const std::string& name, Request request, const std::function<bool()>& client_gone);
  Json restore(const std::string& name);
  Json list();
  Json remove(const std::string& name);

 private:
  void read(Request request, const std::function<bool()>& client_gone);

  EngineLoop& loop_;
  SessionStore& store_;
  const int64_t chunk_tokens_;
};

}  // namespace coppice
