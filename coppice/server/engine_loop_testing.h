// Helpers for tests of the loop: a loop with its thread over a small engine, and answers collected.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "coppice/engine/engine_testing.h"
#include "coppice/server/engine_loop.h"

namespace coppice::testing {

struct LoopServer {
  LoopServer(EngineConfig engine_config, const LoopConfig& config)
      : engine(tiny_model(), std::move(engine_config)), loop(engine, config) {}
  ~LoopServer() { end(); }
  LoopServer(const LoopServer&) = delete;
  LoopServer& operator=(const LoopServer&) = delete;

  void begin() {
    thread = std::thread([this] { loop.run(); });
  }
  void end() {
    loop.stop(std::chrono::milliseconds(0));
    if (thread.joinable()) thread.join();
  }

  Engine engine;
  EngineLoop loop;
  std::thread thread;
};

// The end of one request: tokens joined.
inline RequestOutput collect(Mailbox& mailbox) {
  RequestOutput joined;
  while (!joined.finished()) {
    const std::optional<Update> update = mailbox.take(std::chrono::milliseconds(60'000));
    if (!update) {
      ADD_FAILURE() << "no answer";
      return joined;
    }
    const RequestOutput& output = update->output;
    joined.tokens.insert(joined.tokens.end(), output.tokens.begin(), output.tokens.end());
    joined.finish_reason = output.finish_reason;
    joined.error = output.error;
    joined.usage = output.usage;
  }
  return joined;
}

// What a request answers under these settings when nothing else runs.
inline std::vector<int32_t> alone(const Request& request, const EvictionConfig& eviction) {
  Engine engine(tiny_model(), engine_config(eviction));
  Request exact = request;
  exact.eviction = eviction;
  return ids_of(engine.run(exact).tokens);
}

}  // namespace coppice::testing
