// Picture files through encoder, cache and engine, against what transformers generated
// (tools/make_llava_golden.py).
#include "coppice/engine/image_encoder.h"

#include "coppice/engine/engine_testing.h"
#include "tests/parity/golden_llava.h"

namespace coppice {
namespace {

constexpr auto kImageId = static_cast<int32_t>(golden::kLlavaImageId);

struct LlavaEngine {
  Checkpoint checkpoint = Checkpoint::open(golden::llava_folder());
  std::shared_ptr<Model> model = load_model(checkpoint, WeightMode::kFloat32);
  std::unique_ptr<ImageEncoder> images = ImageEncoder::load(checkpoint, WeightMode::kFloat32);

  Request request(const golden::LlavaCase& one) const {
    // Back to one token for each picture.
    std::vector<int32_t> ids;
    int64_t run = 0;
    for (const int64_t id : golden::to_vector(golden::expected("llava", one.name + ".prompt"))) {
      run = id == kImageId ? run + 1 : 0;
      if (run % golden::kLlavaImageTokens <= 1 && (run == 0 || run % 16 == 1))
        ids.push_back(static_cast<int32_t>(id));
    }
    std::vector<ImageEncoder::Encoded> pictures;
    for (const std::string& name : one.pictures) {
      const std::string file = golden::picture_file(name);
      pictures.push_back(images->encode(std::as_bytes(std::span(file))));
    }
    Request request;
    set_prompt(request, ids, kImageId, pictures);
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 24;
    return request;
  }

  EngineConfig config(int64_t budget) const {
    EngineConfig config;
    config.max_blocks = 2000;
    config.chunk_tokens = 7;  // borders inside pictures
    config.eviction.policy = "streaming";
    config.eviction.budget_entries = budget;
    return config;
  }
};

const LlavaEngine& llava() {
  static const LlavaEngine loaded;
  return loaded;
}

std::vector<int64_t> wanted(const std::string& name) {
  return golden::to_vector(golden::expected("llava", name + ".generated"));
}

TEST(ImageEncoder, greedy_generations_equal_the_reference_alone_and_batched) {
  for (const int64_t budget : {EvictionConfig::kUnbounded, int64_t{120}}) {
    Engine engine(llava().model, llava().config(budget));
    std::map<RequestId, std::string> names;
    std::map<RequestId, std::vector<int64_t>> got;
    for (const golden::LlavaCase& one : golden::llava_cases()) {
      const Request request = llava().request(one);
      const RequestOutput alone = Engine(llava().model, llava().config(budget)).run(request);
      std::vector<int64_t> ids;
      for (const SampledToken& token : alone.tokens) ids.push_back(token.id);
      EXPECT_EQ(ids, wanted(one.name)) << one.name;
      EXPECT_EQ(alone.usage.kv.kept_image_entries,
                static_cast<int64_t>(one.pictures.size()) * 16 * 3 * 2);
      names[engine.submit(request)] = one.name;
    }
    while (engine.has_work())
      for (const RequestOutput& output : engine.step())
        for (const SampledToken& token : output.tokens) got[output.id].push_back(token.id);
    for (const auto& [id, name] : names) EXPECT_EQ(got[id], wanted(name)) << name;
  }
}

TEST(ImageEncoder, a_picture_is_encoded_once_within_the_bound) {
  const auto load = [](int64_t bytes) {
    return ImageEncoder(load_vision(llava().checkpoint, WeightMode::kFloat32),
                        ImageProcessor::from_config(llava().checkpoint.image_processor_config()),
                        {}, bytes);
  };
  const auto encode = [](ImageEncoder& images, const char* name) {
    const std::string file = golden::picture_file(name);
    return images.encode(std::as_bytes(std::span(file)));
  };
  constexpr int64_t kOne = 16 * 32 * 4;
  ImageEncoder two = load(2 * kOne);
  const ImageEncoder::Encoded first = encode(two, "photo.png");
  EXPECT_TRUE(encode(two, "photo.png").embeddings.is_same(first.embeddings));
  EXPECT_NE(encode(two, "L.png").hash, first.hash);
  EXPECT_EQ(two.encoded_pictures(), 2);
  encode(two, "photo.png");
  encode(two, "RGB.png");  // L.png goes
  encode(two, "photo.png");
  EXPECT_EQ(two.encoded_pictures(), 3);
  encode(two, "L.png");
  EXPECT_EQ(two.encoded_pictures(), 4);
  ImageEncoder none = load(0);
  EXPECT_TRUE(torch::equal(encode(none, "photo.png").embeddings, first.embeddings));
  encode(none, "photo.png");
  EXPECT_EQ(none.encoded_pictures(), 2);
}

TEST(ImageEncoder, I13_places_and_pictures_must_be_as_many) {
  const ImageEncoder::Encoded picture{"hash", torch::zeros({2, 4})};
  Request request;
  const auto set = [&](const std::vector<int32_t>& ids, std::size_t pictures, int64_t first = 0) {
    set_prompt(request, ids, 9, std::vector<ImageEncoder::Encoded>(pictures, picture), first);
  };
  EXPECT_THROW(set({1, 9}, 0), Error);
  EXPECT_THROW(set({1, 9, 9}, 1), Error);
  EXPECT_THROW(set({1, 2}, 1), Error);
  set({1, 9, 2, 9}, 2, 5);
  EXPECT_EQ(request.prompt, (std::vector<int32_t>{1, 9, 9, 2, 9, 9}));
  ASSERT_EQ(request.images.size(), 2u);
  EXPECT_EQ(request.images[0].begin, 6);
  EXPECT_EQ(request.images[1].begin, 9);
  EXPECT_EQ(request.images[1].end(), 11);
  set({1, 2}, 0);
  EXPECT_TRUE(request.images.empty());
}

TEST(ImageEncoder, a_text_model_has_none) {
  EXPECT_EQ(
      ImageEncoder::load(Checkpoint::open(golden::folder("llama") + "/hf"), WeightMode::kFloat32),
      nullptr);
}

}  // namespace
}  // namespace coppice
