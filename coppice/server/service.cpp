#include "coppice/server/service.h"

#include <algorithm>
#include <random>
#include <span>

#include "coppice/core/error.h"
#include "coppice/core/log.h"
#include "coppice/core/sha256.h"
#include "coppice/server/answer.h"
#include "coppice/server/api_error.h"
#include "coppice/server/page.h"
#include "coppice/server/pinned_messages.h"
#include "coppice/server/service_paths.h"
#include "coppice/server/text.h"

namespace coppice {
namespace {

std::string sha256(std::string_view text) {
  return sha256_of(std::as_bytes(std::span(text.data(), text.size())));
}

// In a time that does not depend on where they differ. REQUIRES: equal sizes.
bool same_hash(const std::string& a, const std::string& b) {
  unsigned different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    different |=
        static_cast<unsigned>(static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]));
  }
  return different == 0;
}

std::string random_hex() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

bool is_json_type(std::string_view content_type) {
  std::string type = lower(content_type);
  std::erase(type, ' ');
  return type == "application/json" || type == "application/json;charset=utf-8" ||
         type == "application/json;charset=\"utf-8\"";
}

bool is_loopback_name(std::string_view host) {
  const std::size_t colon = host.rfind(':');
  const bool port = colon != std::string_view::npos && host.find(']', colon) == std::string::npos;
  const std::string name = lower(port ? host.substr(0, colon) : host);
  return name.empty() || name == "localhost" || name == "127.0.0.1" || name == "[::1]";
}

// The field that a refusal of validate() speaks of.
std::string sampling_field(std::string_view message) {
  for (const char* name :
       {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "logit_bias", "max_tokens", "stop_token", "stop"}) {
    if (message.find(name) != std::string_view::npos) return name;
  }
  return {};
}

bool begins_with_system(const ChatRequest& chat) {
  return chat.messages.size() > 1 && chat.messages.front().value("role", "") == "system";
}

}  // namespace

Service::Service(const ServiceConfig& config, const Tokenizer& tokenizer,
                 const ChatTemplate* chat_template, EngineLoop& loop)
    : config_(config),
      tokenizer_(tokenizer),
      chat_template_(chat_template),
      habits_(chat_template == nullptr ? TemplateHabits{}
                                       : template_habits(*chat_template, tokenizer)),
      loop_(loop),
      instance_(random_hex()) {
  for (const std::string& key : config_.api_keys) key_hashes_.push_back(sha256(key));
}

bool Service::key_fits(const std::string& authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  const bool bearer = lower(authorization.substr(0, kScheme.size())) == kScheme;
  const std::string hash = sha256(bearer ? authorization.substr(kScheme.size()) : authorization);
  bool fits = false;
  for (const std::string& known : key_hashes_) fits |= same_hash(hash, known);
  return fits && bearer;
}

std::optional<Reply> Service::refuse_early(const ApiCall& call) {
  if (config_.loopback_hosts_only && !is_loopback_name(call.host)) {
    return error_reply(403,
                       "this server answers to localhost alone; start it with --api-key to serve "
                       "other host names",
                       "host_not_allowed");
  }
  const bool page = find_page_file(call.path) != nullptr;
  const bool open_to_all = page || call.path == "/health";
  if (!open_to_all && !key_hashes_.empty() && !key_fits(call.authorization)) {
    Reply reply =
        error_reply(401, "a valid API key is needed: Authorization: Bearer KEY", "invalid_api_key");
    reply.headers.emplace_back("WWW-Authenticate", "Bearer");
    return reply;
  }
  const std::vector<std::string_view> allowed = allowed_methods(call.path);
  if (allowed.empty()) {
    return error_reply(404, "there is no " + in_quotes(call.path) + " here", "not_found");
  }
  const std::string_view method = call.method == "HEAD" ? std::string_view("GET") : call.method;
  if (std::find(allowed.begin(), allowed.end(), method) == allowed.end()) {
    const std::string methods = fmt::format("{}", fmt::join(allowed, ", "));
    Reply reply = error_reply(405, fmt::format("{} takes {}, got {}", in_quotes(call.path), methods,
                                               in_quotes(call.method)));
    reply.headers.emplace_back("Allow", methods);
    return reply;
  }
  if (method != "POST") return std::nullopt;
  if (!is_json_type(call.content_type)) {
    return error_reply(415, "expected Content-Type: application/json (UTF-8), got " +
                                in_quotes(call.content_type));
  }
  if (!call.content_encoding.empty() && lower(call.content_encoding) != "identity") {
    return error_reply(415, "Content-Encoding " + in_quotes(call.content_encoding) +
                                " is not supported; send the body as it is");
  }
  return std::nullopt;
}

Reply Service::error_reply(int status, const std::string& message, const std::string& code) {
  count(status);
  return {.status = status, .body = dump_json(ApiError(status, message, {}, code).to_json())};
}

Reply Service::handle(const ApiCall& call) {
  try {
    Reply reply = dispatch(call);
    count(reply.status);
    return reply;
  } catch (const ApiError& error) {
    count(error.status());
    Reply reply{.status = error.status(), .body = dump_json(error.to_json())};
    if (error.status() == 429) reply.headers.emplace_back("Retry-After", "1");
    return reply;
  } catch (const Error& error) {
    const ApiError shown = api_error(error.code(), error.what());
    count(shown.status());
    return {.status = shown.status(), .body = dump_json(shown.to_json())};
  } catch (const std::exception& error) {
    log_warning("{} {} failed: {}", call.method, call.path, error.what());
    return error_reply(500, "the server could not answer this request", "internal_error");
  }
}

void Service::check_model(const std::optional<std::string>& model) const {
  if (!model || *model == config_.model_id) return;
  throw ApiError(404,
                 fmt::format("there is no model {}; this server has {}", in_quotes(*model),
                             in_quotes(config_.model_id)),
                 "model", "model_not_found");
}

std::vector<ImageEncoder::Encoded> Service::encode_images(
    const std::vector<std::string>& images) const {
  std::vector<ImageEncoder::Encoded> encoded;
  if (!images.empty() && config_.images == nullptr)
    refuse_field("messages", "this model reads text alone, and pictures were given");
  if (!images.empty() && !chat_template_->reads_content_parts())
    refuse_field("messages", "this model's chat template has no place for pictures");
  try {
    for (const std::string& file : images)
      encoded.push_back(config_.images->encode(std::as_bytes(std::span(file))));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw;
    throw ApiError(400, fmt::format("picture {}: {}", encoded.size() + 1, error.what()), "messages",
                   "invalid_image");
  }
  return encoded;
}

Service::EncodedChat Service::encode_chat(const ChatRequest& chat,
                                          const std::vector<std::string>& images,
                                          const KvWish& kv) const {
  if (chat_template_ == nullptr) {
    throw ApiError(400, "this model brings no chat template; use /v1/completions", "messages");
  }
  try {
    const std::vector<ImageEncoder::Encoded> pictures = encode_images(images);
    const RenderedPrompt prompt = chat_template_->render(chat);
    std::vector<int32_t> ids =
        tokenizer_.encode(prompt.text, {.parse_special = true}, prompt.plain);
    EncodedChat encoded{
        .request = {},
        .format = reply_format(habits_, chat, prompt.text),
        .pins = merge_pins(message_spans(tokenizer_, prompt, ids, kv.keep, "kv.keep")),
        .marks = message_spans(tokenizer_, prompt, ids, kv.mark, "kv.mark")};
    if (begins_with_system(chat)) {  // others may share it; nobody asked, so nothing is refused
      if (const auto system = find_message(tokenizer_, prompt, ids, 0))
        encoded.marks.push_back(*system);
    }
    if (config_.images == nullptr) {
      encoded.request.prompt = std::move(ids);
    } else {
      set_prompt(encoded.request, ids, config_.images->image_token_id(), pictures);
      const int32_t image = config_.images->image_token_id();
      encoded.pins = with_pictures(encoded.pins, ids, image, pictures);
      encoded.marks = with_pictures(encoded.marks, ids, image, pictures);
    }
    return encoded;
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    throw api_error(error.code(), error.what(), "messages");
  }
}

LoopRequest Service::make_request(const Generation& generation, std::vector<int32_t> prompt,
                                  std::vector<PositionSpan> pins) const {
  try {
    validate(generation.sampling, tokenizer_.vocab_size());
  } catch (const Error& error) {
    throw api_error(error.code(), error.what(), sampling_field(error.what()));
  }
  LoopRequest asked;
  const auto tokens = static_cast<int64_t>(prompt.size());
  const int64_t room = std::max<int64_t>(0, config_.max_model_tokens - tokens);
  const BudgetRange range =
      resolve_kv(generation.kv, config_.kv, tokens + generation.sampling.max_tokens.value_or(room),
                 std::move(pins));
  asked.request.eviction = range.most;
  if (!range.fixed()) asked.least = range.least;
  asked.request.prompt = std::move(prompt);
  asked.request.sampling = generation.sampling;
  return asked;
}

Reply Service::chat(const ApiCall& call) {
  const ChatBody body = read_chat_body(call.body);
  check_model(body.model);
  EncodedChat chat = encode_chat(body.chat, body.images, body.generation.kv);
  LoopRequest asked =
      make_request(body.generation, std::move(chat.request.prompt), std::move(chat.pins));
  asked.request.images = std::move(chat.request.images);
  if (!body.generation.kv.mark.empty() && !loop_.keeps(asked.request.eviction->policy)) {
    refuse_field("kv.mark", "this server keeps no states of the cache under policy {}",
                 asked.request.eviction->policy);
  }
  for (const PositionSpan& mark : chat.marks) asked.marks.push_back(mark.end);
  return answer(call, ApiKind::kChat, body.generation, {std::move(asked)}, {}, chat.format);
}

Reply Service::completion(const ApiCall& call) {
  CompletionBody body = read_completion_body(call.body);
  check_model(body.model);
  std::vector<LoopRequest> requests;
  std::vector<std::string> echoes;
  for (CompletionPrompt& prompt : body.prompts) {
    std::vector<int32_t> ids;
    if (auto* text = std::get_if<std::string>(&prompt)) {
      ids = tokenizer_.encode(*text, {.parse_special = true, .add_special = true});
      if (body.echo) echoes.push_back(std::move(*text));
    } else {
      ids = std::move(std::get<std::vector<int32_t>>(prompt));
      if (body.echo) echoes.push_back(tokenizer_.decode(ids));
    }
    requests.push_back(make_request(body.generation, std::move(ids)));
    requests.back().request.score_prompt =
        body.echo && body.generation.sampling.logprobs.has_value();
  }
  return answer(call, ApiKind::kCompletion, body.generation, std::move(requests),
                std::move(echoes));
}

Reply Service::answer(const ApiCall& call, ApiKind kind, const Generation& generation,
                      std::vector<LoopRequest> prompts, std::vector<std::string> echoes,
                      const ReplyFormat& format) {
  std::vector<LoopRequest> requests;
  std::vector<std::string> starts;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    for (int64_t i = 0; i < generation.n; ++i) {
      requests.push_back(prompts[p]);
      if (auto& seed = requests.back().request.sampling.seed) *seed += static_cast<uint64_t>(i);
      starts.push_back(echoes.empty() ? std::string() : echoes[p]);
    }
  }
  const ReplyHead head{
      .kind = kind, .id = next_id(kind), .created = unix_time(), .model = config_.model_id};
  const AnswerOptions options{
      .n = generation.n,
      .include_usage = generation.include_usage,
      .logprobs = generation.sampling.logprobs.has_value(),
      .scores_prompt = prompts.front().request.score_prompt,
      .trace = generation.trace ? std::optional(config_.kv.cache) : std::nullopt,
      .range = range_of(prompts.front()),
      .rows = config_.kv.cache.num_rows(),
      .keep = generation.kv.keep,
      .mark = generation.kv.mark,
      .format = format};
  auto answer = std::make_shared<Answer>(head, options, tokenizer_, loop_, call.client_gone);
  answer->begin(std::move(requests), std::move(starts));
  Reply reply;
  reply.headers.emplace_back("X-Request-Id", head.id);
  if (generation.stream) {
    reply.content_type = "text/event-stream";
    reply.headers.emplace_back("Cache-Control", "no-cache");
    reply.stream = [answer](const WriteFn& write) { answer->stream(write); };
  } else {
    reply.body = dump_json(answer->wait());
  }
  return reply;
}

std::string Service::next_id(ApiKind kind) {
  return fmt::format("{}-{}{:08x}", kind == ApiKind::kChat ? "chatcmpl" : "cmpl", instance_,
                     next_id_.fetch_add(1));
}

void Service::count(int status) {
  const std::lock_guard lock(mutex_);
  ++replies_[status];
}

}  // namespace coppice
