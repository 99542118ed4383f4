// How the loop reads a prompt: in parts, with a copy of the state kept between them.
#include <algorithm>

#include "coppice/core/error.h"
#include "coppice/server/engine_loop.h"

namespace coppice {

// Where the prompt is to be read up to and its state kept: the last whole chunks of all of it,
// which leaves a token to answer, and of its marked beginnings.
void EngineLoop::plan_stops(Job& job) const {
  const int64_t chunk = job.request.chunk_tokens.value_or(engine_.config().chunk_tokens);
  const auto prompt = static_cast<int64_t>(job.request.prompt.size());
  const int64_t last = prompt == 0 ? 0 : (prompt - 1) / chunk * chunk;
  for (int64_t& stop : job.stops) stop = std::min(stop / chunk * chunk, last);
  job.stops.push_back(last);
  std::sort(job.stops.begin(), job.stops.end());
  job.stops.erase(std::unique(job.stops.begin(), job.stops.end()), job.stops.end());
  std::erase_if(job.stops, [&job](int64_t stop) { return stop <= job.reused; });
}

// Tokens from `have` on: up to the next stop, or to the end and the answer.
RequestId EngineLoop::go_on(Job& job, int64_t have) {
  return job.stops.empty() ? begin_answer(job, have) : begin_reading(job, have);
}

// Reads from token `have` to the next stop and keeps the state.
RequestId EngineLoop::begin_reading(Job& job, int64_t have) {
  const int64_t boundary = job.stops.front();
  job.stops.erase(job.stops.begin());
  Request part;
  part.prompt.assign(job.request.prompt.begin() + have, job.request.prompt.begin() + boundary);
  for (const ImageSpan& span : job.request.images)
    if (span.begin < boundary) part.images.push_back(span);
  part.sampling.max_tokens = 0;
  part.eviction = job.request.eviction;
  part.chunk_tokens = job.request.chunk_tokens;
  part.session = job.session;
  part.keep_session = true;
  job.reading = true;
  return submit_part(job, part);
}

RequestId EngineLoop::begin_answer(Job& job, int64_t have) {
  Request part = job.request;
  part.prompt.erase(part.prompt.begin(), part.prompt.begin() + have);
  part.session = job.session;
  part.keep_session = job.mailbox->wants_views;  // for the last view
  job.reading = false;
  return submit_part(job, part);
}

// All parts of a job are read in the turn of the first one.
RequestId EngineLoop::submit_part(Job& job, Request& part) {
  part.in_place_of = job.first_part;
  const RequestId id = engine_.submit(part);
  if (!job.first_part) job.first_part = id;
  return id;
}

// The prompt is read up to a stop: keeps a copy of that state and goes on.
void EngineLoop::after_reading(Job job, RequestOutput output) {
  if (output.error) {
    drop_if_kept(job.session);
    return fail_job(job, output.error->code, output.error->message);
  }
  job.session = output.session;
  try {
    const std::vector<int32_t>& tokens = engine_.session_tokens(*job.session);
    const auto have = static_cast<int64_t>(tokens.size());
    if (!job.changed) {
      snapshots_.add(*job.session, tokens, job.request.images, *job.request.eviction,
                     job.request.chunk_tokens.value_or(engine_.config().chunk_tokens),
                     free_blocks());
    }
    const RequestId id = go_on(job, have);
    active_.emplace(id, std::move(job));
  } catch (const Error& error) {
    drop_if_kept(job.session);
    fail_job(job, error.code(), error.what());
  }
}

}  // namespace coppice
