#include "coppice/server/session_service.h"

#include "coppice/server/api_error.h"
#include "coppice/server/snapshot_store.h"

namespace coppice {
namespace {

constexpr std::chrono::milliseconds kPatience{100};

Json entry_json(const SessionStore::Entry& entry) {
  return {{"id", entry.name},
          {"object", "session"},
          {"bytes", entry.bytes},
          {"created", entry.created}};
}

}  // namespace

SessionService::SessionService(EngineLoop& loop, SessionStore& store, int64_t chunk_tokens)
    : loop_(loop), store_(store), chunk_tokens_(chunk_tokens) {}

void SessionService::read(Request request, const std::function<bool()>& client_gone) {
  auto mailbox = std::make_shared<Mailbox>();
  const CallId call = loop_.submit({std::move(request)}, mailbox);
  while (true) {
    const std::optional<Update> update = mailbox->take(kPatience);
    if (update && update->output.error) {
      throw api_error(update->output.error->code, update->output.error->message);
    }
    if (update && update->output.finished()) return;
    if (!update && client_gone()) {
      loop_.cancel(call);
      throw ApiError(499, "the client is gone");
    }
  }
}

Json SessionService::save(const std::string& name, Request request,
                          const std::function<bool()>& client_gone) {
  store_.check_name(name);
  if (!loop_.keeps(request.eviction->policy)) {
    throw ApiError(400,
                   "no states of this policy are kept, or none at all (--kv-reuse): nothing can be "
                   "saved",
                   "kv.policy", "invalid_value");
  }
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t whole = tokens == 0 ? 0 : (tokens - 1) / chunk_tokens_ * chunk_tokens_;
  if (whole == 0) {
    throw ApiError(400,
                   fmt::format("a text of {} tokens is too short to save: at least {} are needed",
                               tokens, chunk_tokens_ + 1),
                   "messages", "invalid_value");
  }
  const EvictionConfig eviction = *request.eviction;
  request.prompt.resize(static_cast<std::size_t>(whole) + 1);  // one token behind what is kept
  const std::vector<int32_t> kept(request.prompt.begin(), request.prompt.end() - 1);
  request.sampling.max_tokens = 0;
  std::optional<SessionImage> image = loop_.copy_snapshot(kept, eviction);
  if (!image) {
    read(std::move(request), client_gone);
    image = loop_.copy_snapshot(kept, eviction);
  }
  if (!image) {
    throw ApiError(503, "the state does not fit among the kept ones (--kv-reuse) now", {},
                   "session_not_saved");
  }
  Json reply = entry_json(store_.save(name, *image));
  reply["tokens"] = whole;
  return reply;
}

Json SessionService::restore(const std::string& name) {
  const SessionImage image = store_.load(name);
  try {
    if (!loop_.adopt_snapshot(image)) {
      throw ApiError(503, "the session does not fit among the kept states (--kv-reuse) now", "name",
                     "session_not_restored");
    }
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    throw ApiError(409, error.what(), "name", "session_unusable");
  }
  return {{"id", name}, {"object", "session"}, {"tokens", image.tokens.size()}, {"restored", true}};
}

Json SessionService::list() {
  Json data = Json::array();
  for (const SessionStore::Entry& entry : store_.list()) data.push_back(entry_json(entry));
  return {{"object", "list"}, {"data", std::move(data)}};
}

Json SessionService::remove(const std::string& name) {
  store_.remove(name);
  return {{"id", name}, {"object", "session"}, {"deleted", true}};
}

}  // namespace coppice
