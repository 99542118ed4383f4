#include "apps/session_settings.h"

#include <span>

#include "apps/hash_cache.h"
#include "coppice/core/json.h"
#include "coppice/core/sha256.h"

namespace coppice {
std::string session_settings(const Runtime& runtime, const EngineConfig& config) {
  Checkpoint checkpoint = Checkpoint::open(runtime.path());
  const ModelOptions& options = runtime.options();
  const std::string gate = gate_path(options, checkpoint);
  const Json settings = {{"model", find_sha256(checkpoint)},
                         {"gate", gate.empty() ? std::string() : sha256_of_gate(gate)},
                         {"weights", options.weights},
                         {"kv_dtype", options.kv_dtype},
                         {"positions", options.positions},
                         {"chunk", config.chunk_tokens}};
  const std::string text = dump_json(settings);
  return sha256_of(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace coppice
