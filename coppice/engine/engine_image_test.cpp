// Pictures in sequences: entries like any other, whatever the chunk, the batch and the budget.
#include <algorithm>

#include "coppice/engine/engine_testing.h"
#include "coppice/engine/image_span.h"
#include "coppice/nn/batch.h"

namespace coppice {
namespace {

using namespace coppice::testing;  // NOLINT: helpers of these tests

constexpr int64_t kRows = 6;  // 3 layers x 2 KV heads
constexpr int32_t kImageId = 90;
constexpr auto kImage = static_cast<uint8_t>(Modality::kImage);

ImageSpan picture(int64_t begin, int64_t tokens, uint64_t seed) {
  torch::manual_seed(seed);
  return {begin, tokens, "picture " + std::to_string(seed), torch::randn({tokens, 32})};
}

// Text, `tokens` of a picture, text, a second picture, text.
Request picture_request(uint64_t seed = 1, int64_t tokens = 21) {
  Rng rng(7);
  Request request = greedy_request(random_prompt(rng, 9), 12);
  const auto put = [&](uint64_t which, int64_t count) {
    request.images.push_back(
        picture(static_cast<int64_t>(request.prompt.size()), count, seed + which));
    request.prompt.insert(request.prompt.end(), static_cast<std::size_t>(count), kImageId);
  };
  put(0, tokens);
  const std::vector<int32_t> middle = random_prompt(rng, 6), end = random_prompt(rng, 5);
  request.prompt.insert(request.prompt.end(), middle.begin(), middle.end());
  put(100, 10);
  request.prompt.insert(request.prompt.end(), end.begin(), end.end());
  return request;
}

std::vector<int32_t> answer(const Request& request, const EvictionConfig& eviction) {
  Engine engine(tiny_model(), engine_config(eviction));
  return ids_of(engine.run(request).tokens);
}

EvictionConfig with_budget(const std::string& policy, int64_t budget) {
  return {.policy = policy, .budget_entries = budget};
}

const EvictionConfig kFull = {.policy = "full"};

TEST(EngineImages, I15_chunk_borders_inside_a_picture_change_nothing) {
  Request request = picture_request();
  const std::vector<int32_t> whole = answer(request, kFull);
  EXPECT_EQ(whole.size(), 12u);
  for (const int64_t chunk : {1, 3, 8, 16, 64}) {
    request.chunk_tokens = chunk;
    EXPECT_EQ(answer(request, kFull), whole) << chunk;
  }
}

TEST(EngineImages, rows_of_the_vocabulary_as_a_picture_are_that_text) {
  const std::shared_ptr<Model> model = tiny_model();
  Request request = picture_request();
  Rng rng(31);
  for (ImageSpan& span : request.images) {
    const std::vector<int32_t> text = random_prompt(rng, span.tokens);
    std::copy(text.begin(), text.end(), request.prompt.begin() + span.begin);
    span.embeddings = model->embed(torch::tensor(std::vector<int64_t>(text.begin(), text.end())));
  }
  for (const EvictionConfig& eviction : {kFull, with_budget("dbtrimkv", 14)}) {
    Request plain = request;
    plain.images.clear();
    EXPECT_EQ(answer(request, eviction), answer(plain, eviction)) << eviction.policy;
  }
}

TEST(EngineImages, a_budget_of_the_length_is_the_full_cache_and_pictures_matter) {
  const Request request = picture_request();
  const std::vector<int32_t> full = answer(request, kFull);
  for (const char* policy : {"dbtrimkv", "trimkv", "streaming", "knorm", "snapkv"})
    EXPECT_EQ(answer(request, with_budget(policy, 80)), full) << policy;
  EXPECT_NE(answer(picture_request(2), kFull), full);
}

TEST(EngineImages, batched_is_alone_and_the_cache_stays_sound) {
  std::vector<Request> requests = {picture_request(1), picture_request(2, 5),
                                   picture_request(3, 30)};
  Rng rng(4);
  requests.push_back(greedy_request(random_prompt(rng, 40), 12));
  for (const EvictionConfig& eviction : {kFull, with_budget("dbtrimkv", 12)}) {
    Engine engine(tiny_model(), engine_config(eviction));
    std::map<RequestId, std::vector<int32_t>> got;
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(engine.submit(request));
    while (engine.has_work()) {
      for (const RequestOutput& output : engine.step()) {
        ASSERT_FALSE(output.error) << output.error->message;
        for (const SampledToken& token : output.tokens) got[output.id].push_back(token.id);
      }
      EXPECT_NO_THROW(validate(engine.cache().snapshot()));
    }
    for (std::size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(got[ids[i]], answer(requests[i], eviction)) << i;
  }
}

// Entries by modality and where they are from, of all rows.
void expect_marked(const Engine& engine, SequenceId sequence, const std::vector<ImageSpan>& images,
                   int64_t wanted) {
  int64_t pictures = 0;
  for (int64_t layer = 0; layer < 3; ++layer)
    for (int64_t head = 0; head < 2; ++head) {
      const KvCache::RowContent row = engine.cache().read_row(sequence, layer, head);
      for (std::size_t i = 0; i < row.positions.size(); ++i) {
        const bool inside = std::any_of(images.begin(), images.end(), [&](const ImageSpan& span) {
          return row.positions[i] >= span.begin && row.positions[i] < span.end();
        });
        EXPECT_EQ(row.modality[i] == kImage, inside);
        pictures += row.modality[i] == kImage;
      }
    }
  EXPECT_EQ(pictures, wanted);
}

TEST(EngineImages, usage_tells_entries_of_pictures_apart) {
  for (const EvictionConfig& eviction :
       {kFull, with_budget("dbtrimkv", 20), with_budget("streaming", 40)}) {
    Request request = picture_request();
    request.keep_session = true;
    Engine engine(tiny_model(), engine_config(eviction));
    const RequestOutput output = engine.run(request);
    const KvUsage& kv = output.usage.kv;
    EXPECT_GT(kv.kept_image_entries, 0) << eviction.policy;
    EXPECT_LT(kv.kept_image_entries, kv.kept_entries);
    EXPECT_EQ(to_json(output.usage)["kv"]["kept_image_entries"], kv.kept_image_entries);
    expect_marked(engine, *engine.sequence_of_session(*output.session), request.images,
                  kv.kept_image_entries);
  }
  EXPECT_EQ(Engine(tiny_model(), engine_config(kFull))
                .run(greedy_request({1, 2, 3}, 2))
                .usage.kv.kept_image_entries,
            0);
}

TEST(EngineImages, a_prompt_in_parts_may_end_inside_a_picture) {
  const Request request = picture_request();
  for (const EvictionConfig& eviction : {kFull, with_budget("dbtrimkv", 12)}) {
    const std::vector<int32_t> whole = answer(request, eviction);
    Engine engine(tiny_model(), engine_config(eviction));
    Request first = request;  // chunks of 8: ends where one ends
    first.prompt.resize(24);
    first.images.resize(1);
    first.keep_session = true;
    EXPECT_THROW(engine.submit(first), Error) << "an answer to half a picture";
    first.sampling.max_tokens = 0;
    const SessionId session = *engine.run(first).session;
    Request rest = request;
    rest.prompt.erase(rest.prompt.begin(), rest.prompt.begin() + 24);
    rest.session = session;
    Request other = rest;
    other.images[0] = picture(other.images[0].begin, 21, 55);
    EXPECT_THROW(engine.submit(other), Error) << "another picture than was read";
    EXPECT_EQ(ids_of(engine.run(rest).tokens), whole);
  }
}

TEST(EngineImages, a_picture_in_a_later_turn_stands_at_its_place_after_eviction) {
  Engine engine(tiny_model(), engine_config(with_budget("dbtrimkv", 10)));
  Request request = picture_request();
  request.keep_session = true;
  const RequestOutput first = engine.run(request);
  const auto read = static_cast<int64_t>(engine.session_tokens(*first.session).size());
  Request second = greedy_request({}, 4);
  second.session = first.session;
  second.keep_session = true;
  second.prompt.assign(30, kImageId);
  second.images = {picture(read, 30, 9)};
  const RequestOutput output = engine.run(second);
  std::vector<ImageSpan> all = request.images;
  all.push_back(second.images[0]);
  EXPECT_EQ(output.usage.kv.kept_entries, 10 * kRows);
  expect_marked(engine, *engine.sequence_of_session(*output.session), all,
                output.usage.kv.kept_image_entries);
}

TEST(EngineImages, places_that_do_not_fit_are_refused) {
  Engine engine(tiny_model(), engine_config(kFull));
  const auto refused = [&](const std::function<void(Request&)>& change) {
    Request request = picture_request();
    change(request);
    return code_of([&] { engine.submit(request); }) == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](Request& r) { r.images[0].begin = -1; }));
  EXPECT_TRUE(refused([](Request& r) { r.images[1].begin = 12; }));
  EXPECT_TRUE(refused([](Request& r) { std::swap(r.images[0], r.images[1]); }));
  EXPECT_TRUE(refused([](Request& r) { r.images[1].begin = 51; }));
  EXPECT_TRUE(refused([](Request& r) { r.images[1].begin = 45; }));
  EXPECT_TRUE(refused([](Request& r) { r.images[0].tokens = 0; }));
  EXPECT_TRUE(refused([](Request& r) { r.images[0].tokens = 20; }));
  EXPECT_TRUE(refused([](Request& r) { r.images[0].embeddings = torch::zeros({21, 31}); }));
  EXPECT_TRUE(refused([](Request& r) { r.images[0].embeddings = at::Tensor(); }));
  EXPECT_FALSE(engine.has_work());
}

TEST(ImageSpans, I12_equal_text_with_other_pictures_is_not_the_same) {
  const std::vector<ImageSpan> a = {picture(2, 4, 1), picture(10, 4, 2)};
  const std::vector<ImageSpan> b = {picture(2, 4, 1), picture(10, 4, 3)};
  EXPECT_TRUE(same_images(a, a, 20));
  EXPECT_TRUE(same_images(a, b, 10));
  EXPECT_FALSE(same_images(a, b, 11));
  EXPECT_FALSE(same_images(a, {}, 3));
  EXPECT_TRUE(same_images(a, {}, 2));
}

}  // namespace
}  // namespace coppice
