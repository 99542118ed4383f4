// `coppice serve`: an OpenAI-compatible server with one bounded KV pool.

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <memory>
#include <thread>

#include "apps/commands.h"
#include "apps/report.h"
#include "apps/runtime.h"
#include "apps/session_settings.h"
#include "apps/usage.h"
#include "coppice/cache/memory_plan.h"
#include "coppice/core/error.h"
#include "coppice/core/log.h"
#include "coppice/server/http_server.h"
#include "coppice/server/session_service.h"

namespace coppice {
namespace {

struct ServeOptions {
  ModelOptions model;
  HttpConfig http;
  std::vector<std::string> api_keys;
  std::string name;  // empty: that of the model's file
  std::string kv_pool = "256MiB";
  std::string kv_reuse;  // empty: a quarter of the pool
  std::string max_body = "4MiB";
  std::string session_dir;  // empty: no sessions are saved
  std::string session_bytes = "1GiB";
  std::optional<int64_t> kv_ceiling, kv_min_budget;
  int64_t max_requests = 64;
  int64_t max_running = 16;
  int64_t grace_seconds = 30;
};

// Blocks of a pool of --kv-pool.
int64_t pool_blocks(const CacheConfig& cache, int64_t bytes, int64_t sequences) {
  const MemoryPlan one = plan_memory(cache, 1, 1, sequences);
  const int64_t blocks = blocks_within(cache, bytes, sequences);
  if (blocks < one.max_blocks) {
    fail_argument("--kv-pool: {} cannot hold {} sequences; at least {} are needed",
                  human_bytes(static_cast<double>(bytes)), sequences,
                  human_bytes(static_cast<double>(one.total_bytes())));
  }
  return blocks;
}

std::unique_ptr<Engine> make_engine(const Runtime& runtime, const ServeOptions& options) {
  const int64_t range = runtime.model()->args().max_position_embeddings;
  EngineConfig config = runtime.engine_config(range, 1);
  const int64_t bytes = read_bytes("--kv-pool", options.kv_pool);
  config.scheduler.max_sequences = options.max_running;
  // A snapshot is a sequence, too.
  config.max_blocks =
      from_flags([&] { return pool_blocks(runtime.cache(), bytes, options.max_running); });
  return std::make_unique<Engine>(runtime.model(), config, text_streams(runtime.tokenizer()));
}

std::unique_ptr<SessionStore> make_session_store(const Runtime& runtime,
                                                 const ServeOptions& options,
                                                 const Engine& engine) {
  if (options.session_dir.empty()) return nullptr;
  SessionStoreConfig config;
  config.folder = options.session_dir;
  config.max_bytes = read_bytes("--session-bytes", options.session_bytes);
  config.settings = session_settings(runtime, engine.config());
  config.like = engine.cache().image_like();
  return from_flags([&] { return std::make_unique<SessionStore>(config); });
}

ServiceConfig service_config(const Runtime& runtime, const ServeOptions& options,
                             const Engine& engine) {
  ServiceConfig config;
  config.model_id = options.name;
  if (config.model_id.empty()) {
    config.model_id = options.model.model == "smollm2"
                          ? options.model.model
                          : std::filesystem::path(runtime.path()).stem().string();
  }
  config.api_keys = options.api_keys;
  const std::string& host = options.http.host;
  const bool loopback = host == "127.0.0.1" || host == "localhost" || host == "::1";
  config.loopback_hosts_only = loopback && options.api_keys.empty();
  if (!loopback && options.api_keys.empty()) {
    log_warning("--host {}: other machines may call this server, and no --api-key is set", host);
  }
  config.kv.eviction = engine.config().eviction;
  config.kv.budget = options.model.budget;
  config.kv.ceiling = options.kv_ceiling;
  config.kv.min_budget = options.kv_min_budget;
  config.kv.cache = engine.cache().config();
  config.kv.chunk_tokens = engine.config().chunk_tokens;
  config.images = runtime.images();
  config.gate_kind = runtime.model()->gate_kind();
  config.max_model_tokens = runtime.model()->args().max_position_embeddings;
  return config;
}

void announce(const ServeOptions& options, const std::string& model, int port,
              const Engine& engine) {
  const std::string host = options.http.host.find(':') == std::string::npos
                               ? options.http.host
                               : "[" + options.http.host + "]";
  const std::string url = fmt::format("http://{}:{}", host, port);
  if (options.model.json) {
    std::cout << dump_json({{"url", url},
                            {"model", model},
                            {"kv_bytes_bound", engine.cache().bytes_bound()}})
              << std::endl;
    return;
  }
  std::cerr << fmt::format("coppice: {} at {}/v1, KV pool {}\n", model, url,
                           human_bytes(static_cast<double>(engine.cache().bytes_bound())));
}

sigset_t stop_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGTERM);
  ::sigaddset(&set, SIGINT);
  return set;
}

// Waits for SIGTERM and SIGINT on a thread of its own; its end waits for what a signal has set off,
// so what `on_signal` uses must outlive it. REQUIRES: the signals are blocked.
class StopWatch final {
 public:
  // `on_signal` is told how many signals have come.
  explicit StopWatch(std::function<void(int)> on_signal)
      : thread_([this, on_signal = std::move(on_signal)] {
          const sigset_t set = stop_signals();
          for (int count = 1;; ++count) {
            int signal = 0;
            ::sigwait(&set, &signal);
            if (done_) return;
            on_signal(count);
          }
        }) {}
  ~StopWatch() {
    done_ = true;
    ::pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }
  StopWatch(const StopWatch&) = delete;
  StopWatch& operator=(const StopWatch&) = delete;

 private:
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

void serve(ServeOptions options) {
  const sigset_t signals = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // in every thread made from now on
  options.http.max_body_bytes = read_bytes("--max-body", options.max_body);
  const Runtime runtime(options.model);
  const std::unique_ptr<Engine> engine = make_engine(runtime, options);
  LoopConfig limits{.max_requests = options.max_requests,
                    .snapshot_blocks = engine->config().max_blocks / 4};
  if (options.kv_reuse == "off") {
    limits.snapshot_blocks = 0;
  } else if (!options.kv_reuse.empty()) {
    limits.snapshot_blocks =
        read_bytes("--kv-reuse", options.kv_reuse) / engine->cache().config().block_bytes();
  }
  EngineLoop loop(*engine, limits);
  const ChatTemplate* chat_template = runtime.find_chat_template();
  ServiceConfig config = service_config(runtime, options, *engine);
  const std::unique_ptr<SessionStore> store = make_session_store(runtime, options, *engine);
  std::optional<SessionService> sessions;
  if (store) config.sessions = &sessions.emplace(loop, *store, engine->config().chunk_tokens);
  Service service(config, runtime.tokenizer(), chat_template, loop);
  HttpServer http(options.http, service);
  const int port = from_flags([&] { return http.bind(); });
  announce(options, config.model_id, port, *engine);
  // The first signal lets answers end, the second one ends them.
  const StopWatch watch([&](int count) {
    loop.stop(std::chrono::seconds(count == 1 ? options.grace_seconds : 0));
    http.stop();
  });
  std::thread listener([&] {
    http.serve();
    loop.stop(std::chrono::seconds(0));
  });
  loop.run();
  http.stop();
  listener.join();
}

}  // namespace

void add_serve_command(CLI::App& program) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command =
      program.add_subcommand("serve", "an OpenAI-compatible server with one bounded KV pool");
  add_model_options(*command, options->model, "1024");
  command->add_option("--host", options->http.host, "address to listen on")->capture_default_str();
  command->add_option("--port", options->http.port, "port to listen on; 0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      ->add_option("--api-key", options->api_keys,
                   "key that clients must send; may be repeated [none: everybody may call]")
      ->envname("COPPICE_API_KEY");
  command->add_option("--served-name", options->name, "the model's name for clients [its file's]");
  command->add_option("--kv-pool", options->kv_pool, "bytes of KV cache for all requests together")
      ->capture_default_str();
  command->add_option("--kv-reuse", options->kv_reuse,
                      "bytes of the pool that states of earlier prompts may hold, or off [a "
                      "quarter of the pool]");
  command
      ->add_option("--kv-ceiling", options->kv_ceiling,
                   "most entries per KV head that one request may get [what the pool holds]")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--kv-min-budget", options->kv_min_budget,
                   "entries per KV head down to which budgets that no request names are lowered "
                   "while others wait [never]")
      ->check(CLI::PositiveNumber);
  command->add_option("--session-dir", options->session_dir,
                      "folder for saved sessions (/v1/sessions) [none: they are off]");
  command
      ->add_option("--session-bytes", options->session_bytes, "bytes that saved sessions may hold")
      ->capture_default_str();
  command->add_option("--max-requests", options->max_requests, "requests waiting and running")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--max-running", options->max_running, "requests running at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--max-body", options->max_body, "bytes of a request's body")
      ->capture_default_str();
  command
      ->add_option("--max-connections", options->http.max_connections, "open connections at once")
      ->check(CLI::Range(1, 900))
      ->capture_default_str();
  command
      ->add_option("--grace", options->grace_seconds,
                   "seconds that answers may take to end after SIGTERM")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->callback([options] { serve(*options); });
}

}  // namespace coppice
