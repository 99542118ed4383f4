// Files of saved sessions: as they are, and with a checksum that holds over whatever they say, for
// a changed file would never get past it. What is read is put into a cache, which must then be
// sound and answer.
#include "coppice/core/sha256.h"
#include "coppice/engine/engine_testing.h"
#include "coppice/server/session_file.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using namespace coppice;           // NOLINT: one file, one parser
using namespace coppice::testing;  // NOLINT

constexpr std::size_t kHashBytes = 64;

EngineConfig sessions_config(const std::string& policy) {
  return engine_config({.policy = policy, .budget_entries = 10, .sinks = 2});
}

Engine& engine() {
  static Engine instance(tiny_model(), sessions_config("dbtrimkv"));
  return instance;
}

std::string saved(const std::string& policy) {
  Engine source(tiny_model(), sessions_config(policy));
  Rng rng(1);
  Request request = greedy_request(random_prompt(rng, 40), 0);
  request.keep_session = true;
  const SessionImage image = source.export_session(*source.run(request).session);
  const SessionFile file(image, "settings");
  std::string text;
  for (const auto part : file.parts()) {
    text.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  return text;
}

void read(std::string_view text) {
  SessionId session = 0;
  try {
    session = engine().import_session(
        read_session(std::as_bytes(std::span(text)), "settings", engine().cache().image_like()));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw;
    return;
  }
  if (const auto faults = validate(engine().cache().snapshot()); !faults.empty()) {
    throw std::runtime_error("an unsound cache: " + faults.front());
  }
  Rng rng(2);
  Request next = greedy_request(random_prompt(rng, 3), 2);
  next.session = session;
  try {
    engine().run(next);
  } catch (const Error& error) {
    // Numbers that are none, under a checksum that holds, end that one answer.
    const bool no_scores =
        std::string_view(error.what()).find("usable score") != std::string_view::npos;
    if (error.code() == ErrorCode::kInternal && !no_scores) throw;
  }
  try {
    engine().drop_session(session);
  } catch (const Error&) {  // the answer took it along
  }
  if (engine().cache().blocks_in_use() != 0) throw std::runtime_error("blocks were left behind");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read(text);
  Sha256 hash;
  const std::string body = text.substr(0, size - std::min(size, kHashBytes));
  hash.update(std::as_bytes(std::span(body)));
  read(body + hash.finish());
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  return {saved("dbtrimkv"), saved("knorm"), saved("streaming"), "coppice session 1\n",
          "coppice session 1\n" + std::string(8, '\xff') + std::string(80, '0')};
}
