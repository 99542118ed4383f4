// Sessions stored outside: what is read back equals what was written, and nothing else is read.
#include "coppice/server/session_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "coppice/core/sha256.h"
#include "coppice/engine/engine_testing.h"
#include "coppice/server/api_error.h"
#include "coppice/server/session_store.h"
#include "tests/support/scratch_folder.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

EvictionConfig small_budget() { return {.policy = "dbtrimkv", .budget_entries = 10, .sinks = 2}; }

std::string joined(const SessionFile& file) {
  std::string text;
  for (const auto part : file.parts()) {
    text.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  EXPECT_EQ(static_cast<int64_t>(text.size()), file.bytes());
  return text;
}

SessionImage parse(const std::string& file, const Engine& engine,
                   const std::string& settings = "settings") {
  return read_session(std::as_bytes(std::span(file.data(), file.size())), settings,
                      engine.cache().image_like());
}

// A session that has evicted, kept in `engine`.
SessionId evicted_session(Engine& engine, uint64_t seed = 1) {
  Rng rng(seed);
  Request request = greedy_request(random_prompt(rng, 40), 0);
  request.keep_session = true;
  return *engine.run(request).session;
}

std::vector<int32_t> go_on(Engine& engine, SessionId session) {
  Rng rng(9);
  Request next = greedy_request(random_prompt(rng, 7), 12);
  next.session = session;
  const RequestOutput output = engine.run(next);
  EXPECT_EQ(output.usage.tokens.reused, 40);
  return ids_of(output.tokens);
}

std::string with_checksum(std::string text) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text.data(), text.size())));
  return text + hash.finish();
}

TEST(SessionFile, K27_a_restored_session_goes_on_like_an_unbroken_one) {
  const std::shared_ptr<Model> model = tiny_model();
  for (const bool compact : {false, true}) {
    for (const EvictionConfig& eviction :
         {small_budget(), EvictionConfig{.policy = "full"},
          EvictionConfig{.policy = "knorm", .budget_entries = 10}}) {
      EngineConfig config = engine_config(eviction);
      config.compact_positions = compact;
      Engine first(model, config), second(model, config);
      evicted_session(second, 5);  // other blocks are in use there
      const SessionId session = evicted_session(first);
      const SessionImage image = first.export_session(session);
      const std::string file = joined(SessionFile(image, "settings"));
      const SessionId restored = second.import_session(parse(file, second));
      EXPECT_TRUE(validate(second.cache().snapshot()).empty());
      const auto from = *first.sequence_of_session(session);
      const auto to = *second.sequence_of_session(restored);
      EXPECT_EQ(second.cache().tokens_seen(to), 40);
      for (int64_t layer = 0; layer < 3; ++layer) {
        for (int64_t head = 0; head < 2; ++head) {
          const auto a = first.cache().read_row(from, layer, head);
          const auto b = second.cache().read_row(to, layer, head);
          EXPECT_EQ(a.positions, b.positions);
          EXPECT_EQ(a.log_beta, b.log_beta);
          EXPECT_EQ(a.aux, b.aux);
          EXPECT_TRUE(torch::equal(a.k, b.k));
          EXPECT_TRUE(torch::equal(a.v, b.v));
        }
      }
      EXPECT_EQ(go_on(second, restored), go_on(first, session)) << eviction.policy;
      EXPECT_EQ(joined(SessionFile(image, "settings")), file);
    }
  }
}

TEST(SessionFile, K27_damaged_foreign_and_empty_files_are_refused) {
  Engine engine(tiny_model(), engine_config(small_budget()));
  const std::string file =
      joined(SessionFile(engine.export_session(evicted_session(engine)), "settings"));
  const auto refused = [&](const std::string& text, const std::string& why) {
    try {
      parse(text, engine);
      ADD_FAILURE() << "read: " << why;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << why;
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refused("", "does not begin like one");
  refused("GGUF" + file, "does not begin like one");
  refused("coppice session 2\n" + file.substr(18), "another version");
  refused("coppice session 1\n", "cut off");
  for (std::size_t size = 18; size < file.size(); size += 97) {
    refused(file.substr(0, size), "cut off");
  }
  for (std::size_t at = 18; at < file.size(); at += 131) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    refused(damaged, "checksum");
  }
  refused(file + "x", "checksum");
  EXPECT_THROW(parse(file, engine, "other"), Error);
  // A checksum that holds over contents that do not.
  const std::string body = file.substr(0, file.size() - 64);
  refused(with_checksum(body + "more"), "bytes too many");
  refused(with_checksum(body.substr(0, body.size() - 1)), "are wanted");
  std::string huge = body;
  huge.replace(18, 8, std::string(8, '\x7f'));
  refused(with_checksum(huge), "header");
}

TEST(SessionFile, images_that_fit_no_cache_change_nothing) {
  Engine engine(tiny_model(), engine_config(small_budget(), 200));
  const SessionImage good = engine.export_session(evicted_session(engine));
  const int64_t used = engine.cache().blocks_in_use();
  const auto refused = [&](const char* what, const std::function<void(SessionImage&)>& spoil,
                           ErrorCode code = ErrorCode::kInvalidArgument) {
    SessionImage image = good;
    for (at::Tensor& pool : image.cache.pools) pool = pool.clone();
    spoil(image);
    EXPECT_EQ(code_of([&] { engine.import_session(image); }), code) << what;
    EXPECT_EQ(engine.cache().blocks_in_use(), used) << what;
    EXPECT_EQ(engine.sessions().size(), 1u) << what;
  };
  refused("token", [](SessionImage& image) { image.tokens[3] = kVocab; });
  refused("token", [](SessionImage& image) { image.tokens[3] = -1; });
  refused("seen", [](SessionImage& image) { image.cache.tokens_seen = 41; });
  refused("none", [](SessionImage& image) { image.cache.tokens_seen = 0; });
  refused("length", [](SessionImage& image) { image.cache.lengths[0] = 1000; });
  refused("negative", [](SessionImage& image) { image.cache.lengths[0] = -1; });
  refused("rows", [](SessionImage& image) { image.cache.lengths.pop_back(); });
  refused("pools", [](SessionImage& image) { image.cache.pools.pop_back(); });
  refused("twice", [](SessionImage& image) { image.cache.pools[2].fill_(1); });
  refused("future", [](SessionImage& image) { image.cache.pools[2].fill_(40); });
  refused("nan", [](SessionImage& image) { image.cache.pools[0].fill_(NAN); });
  refused("beta", [](SessionImage& image) { image.cache.pools[3].fill_(1); });
  refused("type", [](SessionImage& image) {
    image.cache.pools[0] = image.cache.pools[0].to(torch::kHalf);
  });
  refused("budget", [](SessionImage& image) { image.eviction.budget_entries = 2; });
  refused("counts", [](SessionImage& image) { image.evicted_entries = -1; });
  refused(
      "policy", [](SessionImage& image) { image.eviction.policy = "magic"; }, ErrorCode::kNotFound);
  std::vector<SessionId> more;
  while (engine.config().max_blocks - engine.cache().blocks_in_use() >= used) {
    more.push_back(engine.import_session(good));
  }
  EXPECT_EQ(code_of([&] { engine.import_session(good); }), ErrorCode::kCapacity);
  EXPECT_TRUE(validate(engine.cache().snapshot()).empty());
}

struct Store {
  explicit Store(const Engine& engine, int64_t max_bytes = 1 << 20)
      : config{.folder = folder.path() + "/sessions",
               .max_bytes = max_bytes,
               .settings = "settings",
               .like = engine.cache().image_like()} {}
  ScratchFolder folder;
  SessionStoreConfig config;
};

int status_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ApiError& error) {
    return error.status();
  }
  return 200;
}

TEST(SessionStore, saves_lists_loads_and_removes_by_safe_names_alone) {
  Engine engine(tiny_model(), engine_config(small_budget()));
  const SessionImage image = engine.export_session(evicted_session(engine));
  Store at(engine);
  SessionStore store(at.config);
  EXPECT_TRUE(store.list().empty());
  store.save("b_2", image);
  store.save("a-1", image);
  store.save("a-1", image);  // replaced
  ASSERT_EQ(store.list().size(), 2u);
  EXPECT_EQ(store.list()[0].name, "a-1");
  EXPECT_EQ(store.load("a-1").tokens, image.tokens);
  struct stat status {};
  ASSERT_EQ(::stat((at.config.folder + "/a-1.session").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  for (const char* name : {"", ".", "..", "a/b", "../a", "a.session", "a b", "\xff", "a\n"}) {
    EXPECT_EQ(status_of([&] { store.save(name, image); }), 400) << name;
    EXPECT_EQ(status_of([&] { store.load(name); }), 400) << name;
    EXPECT_EQ(status_of([&] { store.remove(name); }), 400) << name;
  }
  EXPECT_EQ(status_of([&] { store.save(std::string(65, 'a'), image); }), 400);
  EXPECT_EQ(status_of([&] { store.load("c"); }), 404);
  store.remove("a-1");
  EXPECT_EQ(status_of([&] { store.remove("a-1"); }), 404);
  EXPECT_EQ(store.list().size(), 1u);
}

TEST(SessionStore, bytes_are_bounded_and_drafts_of_a_killed_process_are_no_sessions) {
  Engine engine(tiny_model(), engine_config(small_budget()));
  const SessionImage image = engine.export_session(evicted_session(engine));
  const int64_t one = SessionFile(image, "settings").bytes();
  Store at(engine, 2 * one);
  SessionStore store(at.config);
  store.save("a", image);
  store.save("b", image);
  EXPECT_EQ(status_of([&] { store.save("c", image); }), 507);
  store.save("b", image);  // in its own place
  const std::string draft = at.config.folder + "/a.session.Xy12zQ";
  std::ofstream(draft) << "half";
  std::ofstream(at.config.folder + "/notes.txt") << "mine";
  EXPECT_EQ(store.list().size(), 2u);
  const SessionStore again(at.config);
  EXPECT_FALSE(std::filesystem::exists(draft));
  EXPECT_TRUE(std::filesystem::exists(at.config.folder + "/notes.txt"));
  std::ofstream(at.config.folder + "/a.session", std::ios::trunc) << "";
  EXPECT_EQ(status_of([&] { store.load("a"); }), 409);
  EXPECT_THROW(SessionStore({.folder = at.config.folder + "/notes.txt/x",
                             .max_bytes = 1,
                             .settings = {},
                             .like = {}}),
               Error)
      << "a file is in the way";
}

}  // namespace
}  // namespace coppice
