// Pictures of a model with three-part positions and DeepStack (Qwen3-VL) in sequences, against what
// transformers generated (tools/make_qwen3_vl_golden.py).
#include <algorithm>

#include "coppice/engine/engine_testing.h"
#include "coppice/engine/image_encoder.h"
#include "coppice/engine/load_text.h"
#include "coppice/processor/chat_template.h"
#include "tests/parity/golden_qwen3_vl.h"

namespace coppice {
namespace {

using golden::qwen_cases;
using golden::qwen_expected;

constexpr auto kImageId = static_cast<int32_t>(golden::kQwenImageId);
constexpr int64_t kRows = 6;  // 3 layers x 2 KV heads

std::vector<int64_t> prompt_of(const std::string& name) {
  return golden::to_vector(qwen_expected(name + ".prompt"));
}

struct QwenEngine {
  Checkpoint checkpoint = Checkpoint::open(golden::qwen_folder());
  // As published: a dictionary of bfloat16 tensors below model.language_model.
  GateWeights gate = load_gate(std::string(COPPICE_SOURCE_DIR) + "/tests/golden/gate_qwen3_vl.pth");
  std::shared_ptr<Model> model = load_model(checkpoint, WeightMode::kFloat32);
  // Whose results are the same bits whatever else is in the batch.
  std::shared_ptr<Model> packed = load_model(checkpoint, WeightMode::kPacked, &gate);
  std::unique_ptr<ImageEncoder> images = ImageEncoder::load(checkpoint, WeightMode::kFloat32);

  std::vector<ImageEncoder::Encoded> encoded(const std::vector<std::string>& names) const {
    std::vector<ImageEncoder::Encoded> pictures;
    for (const std::string& name : names) {
      const std::string file = golden::picture_file(name);
      pictures.push_back(images->encode(std::as_bytes(std::span(file))));
    }
    return pictures;
  }

  Request request(const golden::LlavaCase& one) const {
    Request request;
    set_prompt(request, golden::with_one_token_a_picture(prompt_of(one.name), kImageId), kImageId,
               encoded(one.pictures));
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 20;
    return request;
  }
};

const QwenEngine& qwen() {
  static const QwenEngine loaded;
  return loaded;
}

EngineConfig config(int64_t budget = EvictionConfig::kUnbounded, const char* policy = "streaming") {
  EngineConfig config;
  config.max_blocks = 2000;
  config.chunk_tokens = 7;  // borders inside pictures
  config.eviction.policy = policy;
  config.eviction.budget_entries = budget;
  return config;
}

std::vector<int64_t> ids_of(const std::vector<SampledToken>& tokens) {
  std::vector<int64_t> ids;
  for (const SampledToken& token : tokens) ids.push_back(token.id);
  return ids;
}

std::vector<int64_t> wanted(const std::string& name) {
  return golden::to_vector(qwen_expected(name + ".generated"));
}

const golden::LlavaCase& case_of(const std::string& name) {
  return *std::ranges::find(qwen_cases(), name, &golden::LlavaCase::name);
}

TEST(EngineGrids, I15_generations_equal_the_reference_whatever_the_chunk) {
  for (const golden::LlavaCase& one : qwen_cases()) {
    Request request = qwen().request(one);
    EXPECT_EQ(std::vector<int64_t>(request.prompt.begin(), request.prompt.end()),
              prompt_of(one.name));
    for (const int64_t chunk : {1, 5, 16, 200}) {
      request.chunk_tokens = chunk;
      Engine engine(qwen().model, config());
      const RequestOutput output = engine.run(request);
      EXPECT_EQ(ids_of(output.tokens), wanted(one.name)) << one.name << " chunk " << chunk;
      int64_t pictures = 0;
      for (const ImageSpan& span : request.images) pictures += span.tokens;
      EXPECT_EQ(output.usage.kv.kept_image_entries, pictures * kRows);
    }
  }
}

// Name -> what each case generates, all in one engine.
std::map<std::string, std::vector<int64_t>> batched(const std::shared_ptr<Model>& model,
                                                    const EngineConfig& settings) {
  Engine engine(model, settings);
  std::map<RequestId, std::string> names;
  std::map<std::string, std::vector<int64_t>> got;
  for (const golden::LlavaCase& one : qwen_cases())
    names[engine.submit(qwen().request(one))] = one.name;
  while (engine.has_work()) {
    for (const RequestOutput& output : engine.step()) {
      EXPECT_FALSE(output.error) << output.error->message;
      for (const int64_t id : ids_of(output.tokens)) got[names[output.id]].push_back(id);
    }
    EXPECT_NO_THROW(validate(engine.cache().snapshot()));
  }
  return got;
}

TEST(EngineGrids, batches_equal_the_reference) {
  for (const EngineConfig& settings : {config(), config(120)})
    for (const auto& [name, tokens] : batched(qwen().model, settings))
      EXPECT_EQ(tokens, wanted(name)) << name;
}

// With float32 weights a score may differ in its last bit between batches, and evict another entry.
TEST(EngineGrids, batched_is_alone_under_any_budget) {
  for (const char* policy :
       {"streaming", "snapkv", "expected-attention", "h2o", "knorm", "dbtrimkv"}) {
    const EngineConfig settings = config(24, policy);
    for (const auto& [name, tokens] : batched(qwen().packed, settings))
      EXPECT_EQ(tokens,
                ids_of(Engine(qwen().packed, settings).run(qwen().request(case_of(name))).tokens))
          << name << " under " << policy;
  }
}

TEST(EngineGrids, a_published_gate_lets_pictures_and_text_compete) {
  EXPECT_EQ(qwen().gate.spec.variant, "head-row");
  EXPECT_EQ(qwen().gate.spec.hidden_layers, 2);
  const std::shared_ptr<Model> model =
      load_model(qwen().checkpoint, WeightMode::kFloat32, &qwen().gate);
  for (const golden::LlavaCase& one : qwen_cases()) {
    const RequestOutput full = Engine(model, config(120, "dbtrimkv")).run(qwen().request(one));
    EXPECT_EQ(ids_of(full.tokens), wanted(one.name));
    const RequestOutput less = Engine(model, config(12, "dbtrimkv")).run(qwen().request(one));
    EXPECT_EQ(less.usage.kv.kept_entries, 12 * kRows) << one.name;
    EXPECT_LT(less.usage.kv.kept_image_entries, 12 * kRows) << one.name;
    if (!one.pictures.empty()) {
      EXPECT_GT(less.usage.kv.kept_image_entries, 0) << one.name;
    }
  }
}

TEST(EngineGrids, the_template_and_the_tokenizer_make_the_prompt) {
  const auto tokenizer = load_tokenizer(qwen().checkpoint);
  const ChatTemplate chat(qwen().checkpoint.chat_templates().at("default"));
  ASSERT_TRUE(chat.reads_content_parts());
  ChatRequest request;
  const OrderedJson picture = {{"type", "image"}};
  request.messages = OrderedJson::array({{{"role", "user"},
                                          {"content",
                                           {picture,
                                            picture,
                                            {{"type", "text"}, {"text", "and "}},
                                            picture,
                                            {{"type", "text"}, {"text", "?"}}}}}});
  request.add_generation_prompt = true;
  const RenderedPrompt rendered = chat.render(request);
  const std::vector<int32_t> ids =
      tokenizer.encode(rendered.text, {.parse_special = true}, rendered.plain);
  Request got;
  set_prompt(got, ids, qwen().images->image_token_id(),
             qwen().encoded(case_of("several").pictures));
  EXPECT_EQ(std::vector<int64_t>(got.prompt.begin(), got.prompt.end()), prompt_of("several"));
}

// Notes the positions of all that passes through.
struct NotingModel final : testing::WrappedModel {
  using testing::WrappedModel::WrappedModel;

  ForwardState begin(Batch batch) override {
    seen.push_back(batch.positions.dim() == 2 ? batch.positions : batch.positions.expand({3, -1}));
    return inner->begin(std::move(batch));
  }

  std::vector<at::Tensor> seen;
};

// Has the first `cut` tokens read. -> the request for what is left of `all`.
Request rest_after(Engine& engine, const Request& all, int64_t cut) {
  Request first = all;
  first.prompt.resize(static_cast<std::size_t>(cut));
  std::erase_if(first.images, [&](const ImageSpan& span) { return span.begin >= cut; });
  first.sampling.max_tokens = 0;
  first.keep_session = true;
  Request rest = all;
  rest.prompt.erase(rest.prompt.begin(), rest.prompt.begin() + cut);
  rest.session = engine.run(first).session;
  return rest;
}

TEST(EngineGrids, a_picture_in_a_later_turn_has_the_references_positions_after_eviction) {
  Request all = qwen().request(case_of("turns"));
  for (const int64_t cut : {15, 23, 30, 48}) {  // inside a picture, behind it, and so on
    const auto model = std::make_shared<NotingModel>(qwen().model);
    Engine engine(model, config(6));
    Request rest = rest_after(engine, all, cut);
    rest.keep_session = true;
    rest.sampling.max_tokens = 3;
    const RequestOutput output = engine.run(rest);
    EXPECT_EQ(output.usage.kv.kept_entries, 6 * kRows);
    const at::Tensor seen = at::cat(model->seen, 1);
    const at::Tensor reference = qwen_expected("turns.positions");
    const int64_t prompt = reference.size(1);
    ASSERT_EQ(seen.size(1), prompt + 2) << cut;
    EXPECT_TRUE(at::equal(seen.narrow(1, 0, prompt), reference)) << cut;
    // What is generated goes on in all three parts.
    const int64_t next = reference.max().item<int64_t>() + 1;
    EXPECT_TRUE(at::equal(seen.narrow(1, prompt, 2),
                          torch::tensor({next, next + 1}, torch::kLong).expand({3, 2})));
  }
}

TEST(EngineGrids, turns_of_a_session_are_one_prompt) {
  const Request all = qwen().request(case_of("turns"));
  for (const int64_t cut : {15, 23, 48}) {
    Engine engine(qwen().model, config());
    Request rest = rest_after(engine, all, cut);
    EXPECT_EQ(ids_of(engine.run(rest).tokens), wanted("turns")) << cut;
  }
}

TEST(EngineGrids, compact_positions_change_nothing_within_the_trained_range) {
  EngineConfig compact = config();
  compact.compact_positions = true;
  for (const golden::LlavaCase& one : qwen_cases())
    EXPECT_EQ(ids_of(Engine(qwen().model, compact).run(qwen().request(one)).tokens),
              wanted(one.name))
        << one.name;
}

// Pictures and text without end in a model of few positions.
TEST(EngineGrids, compact_positions_keep_pictures_within_the_trained_range) {
  ModelArgs args = qwen().model->args();
  args.max_position_embeddings = 48;
  torch::manual_seed(3);
  const auto model = std::make_shared<NotingModel>(testing::tiny_model(false, args));
  EngineConfig compact = config(16);
  compact.compact_positions = true;
  Engine engine(model, compact);
  Request request = qwen().request(case_of("turns"));
  request.keep_session = true;
  request.sampling.max_tokens = 5;
  const std::vector<ImageSpan> images = request.images;
  for (int turn = 0; turn < 5; ++turn) {
    const RequestOutput output = engine.run(request);
    ASSERT_EQ(output.tokens.size(), 5u);
    EXPECT_NO_THROW(validate(engine.cache().snapshot()));
    request.session = output.session;
    request.images = images;
    const auto read = static_cast<int64_t>(engine.session_tokens(*output.session).size());
    for (ImageSpan& span : request.images) span.begin += read;
  }
  const at::Tensor seen = at::cat(model->seen, 1);
  EXPECT_GT(seen.size(1), 5 * 75);
  EXPECT_LT(seen.max().item<int64_t>(), 48);
  EXPECT_GE(seen.min().item<int64_t>(), 0);
}

TEST(EngineGrids, grids_that_do_not_fit_are_refused) {
  Engine engine(qwen().model, config());
  const auto refused = [&](const std::function<void(ImageSpan&)>& change) {
    Request request = qwen().request(case_of("one"));
    change(request.images[0]);
    try {
      engine.submit(request);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument;
    }
    return false;
  };
  EXPECT_TRUE(refused([](ImageSpan& span) { span.grid_height = 0; }));
  EXPECT_TRUE(refused([](ImageSpan& span) { span.grid_height += 1; }));
  EXPECT_TRUE(refused([](ImageSpan& span) { span.grid_width = -span.grid_width; }));
  EXPECT_TRUE(refused(
      [](ImageSpan& span) { span.embeddings = span.embeddings.narrow(1, 0, 32).contiguous(); }));
  EXPECT_FALSE(engine.has_work());
}

}  // namespace
}  // namespace coppice
