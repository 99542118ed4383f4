// The API without the socket: a call in, a reply out. What HTTP adds is in http_server.h, so that
// everything here can be tested with plain strings.
//
// A call is checked, tokenised and queued on the caller's thread; the answer comes from the
// engine's thread through a mailbox. Any number of threads may be in handle() at once.
//
// A call reaches the model and the counters, nothing else: no file, no other host, no process. The
// one exception is the folder of saved sessions, where the operator names one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coppice/engine/image_encoder.h"
#include "coppice/processor/chat_template.h"
#include "coppice/processor/tokenizer.h"
#include "coppice/server/engine_loop.h"
#include "coppice/server/generation.h"
#include "coppice/server/replies.h"
#include "coppice/server/reply_format.h"
#include "coppice/server/requests.h"
#include "coppice/server/session_service.h"

namespace coppice {

struct ApiCall {
  std::string method = {}, path = {};
  std::string content_type = {}, content_encoding = {}, authorization = {}, host = {};
  std::string body = {};
  std::function<bool()> client_gone = [] { return false; };
};

// Sends bytes to the client; false: it is gone.
using WriteFn = std::function<bool(std::string_view)>;

struct Reply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  // Where set, the body is what it writes. Called once, on the thread of handle().
  std::function<void(const WriteFn&)> stream = {};
};

struct ServiceConfig {
  std::string model_id;
  std::vector<std::string> api_keys;  // none: everybody may call
  // Refuses calls for other host names than this machine's loopback ones: a web page whose name an
  // attacker points at this machine gets nothing.
  bool loopback_hosts_only = false;
  KvRules kv;
  int64_t max_model_tokens = 0;        // positions of the model
  SessionService* sessions = nullptr;  // must outlive the service; null: there are none
  ImageEncoder* images = nullptr;      // of a model that sees; must outlive the service
  std::string gate_kind;               // as Model::gate_kind: the policies that can be asked for
};

class Service final {
 public:
  // All must outlive it; `chat_template` may be null.
  Service(const ServiceConfig& config, const Tokenizer& tokenizer,
          const ChatTemplate* chat_template, EngineLoop& loop);

  // What can be refused before the body is read: a wrong key, path, method, host or content type.
  std::optional<Reply> refuse_early(const ApiCall& call);
  // Throws nothing. REQUIRES: refuse_early() had nothing to say.
  Reply handle(const ApiCall& call);
  // Also for refusals that HTTP makes itself; counts it.
  Reply error_reply(int status, const std::string& message, const std::string& code = {});

 private:
  Reply dispatch(const ApiCall& call);
  Reply chat(const ApiCall& call);
  Reply completion(const ApiCall& call);
  Reply tokenize(const ApiCall& call) const;
  Reply detokenize(const ApiCall& call) const;
  Reply sessions(const ApiCall& call) const;
  Reply tokenizer_info() const;
  Reply models(const ApiCall& call) const;
  Reply metrics() const;
  Json model_json() const;
  bool key_fits(const std::string& authorization) const;
  void check_model(const std::optional<std::string>& model) const;
  struct EncodedChat {
    Request request;                 // prompt and pictures; the rest is unset
    ReplyFormat format;              // of the answers
    std::vector<PositionSpan> pins;  // of the messages `keep`
  };
  EncodedChat encode_chat(const ChatRequest& chat, const std::vector<std::string>& images,
                          const std::vector<int64_t>& keep = {}) const;
  std::vector<ImageEncoder::Encoded> encode_images(const std::vector<std::string>& images) const;
  LoopRequest make_request(const Generation& generation, std::vector<int32_t> prompt,
                           std::vector<PositionSpan> pins = {}) const;
  Reply answer(const ApiCall& call, ApiKind kind, const Generation& generation,
               std::vector<LoopRequest> prompts, std::vector<std::string> echoes,
               const ReplyFormat& format = {});
  std::string next_id(ApiKind kind);
  void count(int status);

  const ServiceConfig config_;
  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_template_;
  const TemplateHabits habits_;
  EngineLoop& loop_;
  std::vector<std::string> key_hashes_;
  const std::string instance_;  // random, part of every id
  std::atomic<int64_t> next_id_{1};
  mutable std::mutex mutex_;
  std::map<int, int64_t> replies_;  // by status
};

}  // namespace coppice
