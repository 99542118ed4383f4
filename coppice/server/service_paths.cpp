// What is answered at which path, but for completions: service.cpp has them.
#include "coppice/server/service_paths.h"

#include <array>

#include "coppice/server/api_error.h"
#include "coppice/server/metrics.h"
#include "coppice/server/page.h"
#include "coppice/server/service.h"

namespace coppice {
namespace {

struct Route {
  std::string_view method, path;
};
constexpr std::array<Route, 10> kRoutes = {{{"GET", "/health"},
                                            {"GET", "/metrics"},
                                            {"GET", "/v1/models"},
                                            {"POST", "/v1/chat/completions"},
                                            {"POST", "/v1/completions"},
                                            {"GET", "/v1/sessions"},
                                            {"POST", "/v1/sessions"},
                                            {"GET", "/tokenizer_info"},
                                            {"POST", "/tokenize"},
                                            {"POST", "/detokenize"}}};
constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::string_view kSessionPrefix = "/v1/sessions/", kRestore = "/restore";

Reply page_reply(const PageFile& file) {
  return {.content_type = std::string(file.content_type),
          .body = std::string(file.bytes),
          .headers = {{"Content-Security-Policy", std::string(kPagePolicy)},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}}};
}

Reply json_reply(const Json& body) { return {.body = dump_json(body)}; }

}  // namespace

std::vector<std::string_view> allowed_methods(std::string_view path) {
  std::vector<std::string_view> methods;
  for (const Route& route : kRoutes) {
    if (route.path == path) methods.push_back(route.method);
  }
  if (path.starts_with(kModelPrefix) || find_page_file(path) != nullptr) methods.push_back("GET");
  if (path.starts_with(kSessionPrefix)) {
    methods.push_back(path.substr(kSessionPrefix.size()).ends_with(kRestore) ? "POST" : "DELETE");
  }
  return methods;
}

Reply Service::dispatch(const ApiCall& call) {
  if (call.path == "/v1/chat/completions") return chat(call);
  if (call.path == "/v1/completions") return completion(call);
  if (call.path == "/tokenize") return tokenize(call);
  if (call.path == "/detokenize") return detokenize(call);
  if (call.path == "/metrics") return metrics();
  if (call.path == "/tokenizer_info") return tokenizer_info();
  if (call.path.starts_with("/v1/sessions")) return sessions(call);
  if (call.path == "/health") return json_reply({{"status", "ok"}});
  if (const PageFile* file = find_page_file(call.path)) return page_reply(*file);
  return models(call);
}

Json Service::model_json() const {
  const KvRules& kv = config_.kv;
  Json names = Json::array();
  for (const PolicyInfo& policy : policies()) {
    if (policy.gate.empty() || policy.gate == config_.gate_kind) names.push_back(policy.name);
  }
  return {{"id", config_.model_id},
          {"object", "model"},
          {"created", 0},
          {"owned_by", "coppice"},
          {"max_model_len", config_.max_model_tokens},
          {"kv",
           {{"policy", kv.eviction.policy},
            {"policies", std::move(names)},
            {"budget", kv.budget.to_string()},
            {"ceiling", kv.ceiling ? Json(*kv.ceiling) : Json(nullptr)},
            {"min_budget", kv.min_budget ? Json(*kv.min_budget) : Json(nullptr)}}}};
}

Reply Service::models(const ApiCall& call) const {
  if (call.path == "/v1/models") {
    return json_reply({{"object", "list"}, {"data", Json::array({model_json()})}});
  }
  check_model(call.path.substr(kModelPrefix.size()));
  return json_reply(model_json());
}

Reply Service::sessions(const ApiCall& call) const {
  if (config_.sessions == nullptr) {
    throw ApiError(404, "this server keeps no sessions; --session-dir names a folder for them", {},
                   "sessions_off");
  }
  SessionService& sessions = *config_.sessions;
  if (call.path.size() > kSessionPrefix.size()) {
    const std::string name = call.path.substr(kSessionPrefix.size());
    if (call.method == "DELETE") return json_reply(sessions.remove(name));
    return json_reply(sessions.restore(name.substr(0, name.size() - kRestore.size())));
  }
  if (call.method != "POST") return json_reply(sessions.list());
  const SessionBody body = read_session_body(call.body);
  if (!body.kv.budget && config_.kv.budget.unit == KvBudget::Unit::kShare) {
    refuse_field("kv.budget", "is required: the server's own is a share of the text");
  }
  check_model(body.model);
  Generation generation;
  generation.kv = body.kv;
  generation.sampling.max_tokens = 0;
  EncodedChat text;
  if (body.chat) {
    text = encode_chat(*body.chat, {}, body.kv.keep);
  } else {
    text.request.prompt =
        tokenizer_.encode(*body.prompt, {.parse_special = true, .add_special = true});
  }
  const LoopRequest asked =
      make_request(generation, std::move(text.request.prompt), std::move(text.pins));
  return json_reply(sessions.save(body.name, asked.request, call.client_gone));
}

Reply Service::tokenize(const ApiCall& call) const {
  const TokenizeBody body = read_tokenize_body(call.body);
  check_model(body.model);
  const std::vector<int32_t> ids =
      body.chat ? encode_chat(*body.chat, body.images).request.prompt
                : tokenizer_.encode(*body.prompt, {.parse_special = true,
                                                   .add_special = body.add_special_tokens});
  return json_reply(
      {{"tokens", ids}, {"count", ids.size()}, {"max_model_len", config_.max_model_tokens}});
}

// What clients that tokenise here need beside, under the names that they know.
Reply Service::tokenizer_info() const {
  const auto text = [this](const std::optional<int32_t>& id) {
    return id ? Json(tokenizer_.token_text(*id)) : Json(nullptr);
  };
  return json_reply(
      {{"tokenizer_class", "coppice"},
       {"bos_token", text(tokenizer_.bos_id())},
       {"eos_token", text(tokenizer_.eos_id())},
       {"pad_token", text(tokenizer_.pad_id())},
       {"unk_token", text(tokenizer_.unk_id())},
       {"chat_template",
        chat_template_ == nullptr ? Json(nullptr) : Json(std::string(chat_template_->source()))},
       {"model_max_length", config_.max_model_tokens}});
}

Reply Service::detokenize(const ApiCall& call) const {
  const DetokenizeBody body = read_detokenize_body(call.body);
  check_model(body.model);
  for (const int32_t id : body.tokens) {
    if (id >= tokenizer_.vocab_size()) {
      refuse_field("tokens", "token id {} is not in the vocabulary of {}", id,
                   tokenizer_.vocab_size());
    }
  }
  return json_reply({{"prompt", tokenizer_.decode(body.tokens)}});
}

Reply Service::metrics() const {
  std::map<int, int64_t> replies;
  {
    const std::lock_guard lock(mutex_);
    replies = replies_;
  }
  return {.content_type = "text/plain; version=0.0.4",
          .body = metrics_text(loop_.stats(), replies)};
}

}  // namespace coppice
