#include "coppice/loader/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "coppice/core/error.h"
#include "coppice/loader/gguf_file.h"
#include "coppice/loader/safetensors_file.h"
#include "coppice/loader/weight_loader.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/scratch_folder.h"

namespace coppice {
namespace {

using testing::GgufBuilder;
using testing::ScratchFolder;

#define EXPECT_MENTIONS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

template <typename Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::kInternal);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

std::vector<float> counting(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
  return values;
}

// Metadata of a model with 2 heads of width 4 and 1 KV head, 8 hidden, 16 vocabulary entries.
GgufBuilder tiny(const std::string& arch) {
  return GgufBuilder()
      .set_string("general.architecture", arch)
      .set_string("general.name", "Tiny")
      .set_u32(arch + ".block_count", 1)
      .set_u32(arch + ".context_length", 128)
      .set_u32(arch + ".embedding_length", 8)
      .set_u32(arch + ".feed_forward_length", 12)
      .set_u32(arch + ".attention.head_count", 2)
      .set_u32(arch + ".attention.head_count_kv", 1)
      .set_f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f)
      .set_f32(arch + ".rope.freq_base", 5e5f)
      .set_u32("tokenizer.ggml.eos_token_id", 2)
      .set_bool("tokenizer.ggml.add_bos_token", false)
      .set_strings("tokenizer.ggml.tokens", {"a", "<|endoftext|>", "<|im_end|>", "<|im_end|>"})
      .set_i32s("tokenizer.ggml.token_type", {1, 3, 3, 1})
      .set_string("tokenizer.chat_template", "main")
      .set_string("tokenizer.chat_template.tool_use", "tools")
      .tensor("token_embd.weight", {16, 8}, counting(128))
      .tensor("output_norm.weight", {8}, counting(8))
      .tensor("rope_freqs.weight", {2}, {1, 8})
      .tensor("blk.0.attn_q.weight", {8, 8}, counting(64))
      .tensor("blk.0.attn_k.weight", {4, 8}, counting(32))
      .tensor("blk.0.attn_q.bias", {8}, counting(8))
      .tensor("blk.0.attn_output.weight", {8, 8}, counting(64))
      .tensor("blk.0.ffn_norm.weight", {8}, counting(8));
}

std::vector<float> values_of(const StoredTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

class CheckpointFiles : public ::testing::Test {
 protected:
  Checkpoint open(const GgufBuilder& builder) {
    return Checkpoint::open(folder_.write("model.gguf", builder.bytes()));
  }
  // A Hugging Face folder with the tensors "w" [2] F32 and "i" [1] I64.
  void write_folder(const std::string& config = R"({"model_type":"llama","eos_token_id":7})") {
    const std::vector<float> w = {1, 2};
    const std::vector<int64_t> i = {3};
    write_safetensors(folder_.file("model.safetensors"),
                      {{"w", "F32", {2}, std::as_bytes(std::span(w))},
                       {"i", "I64", {1}, std::as_bytes(std::span(i))}},
                      {});
    folder_.write("config.json", config);
  }
  ScratchFolder folder_;
};

TEST_F(CheckpointFiles, gguf_metadata_become_the_keys_of_config_json) {
  const Checkpoint checkpoint = open(tiny("llama"));
  const Json& config = checkpoint.config();
  EXPECT_EQ(config["model_type"], "llama");
  EXPECT_EQ(config["architectures"], Json({"LlamaForCausalLM"}));
  EXPECT_EQ(config["hidden_size"], 8);
  EXPECT_EQ(config["num_hidden_layers"], 1);
  EXPECT_EQ(config["num_attention_heads"], 2);
  EXPECT_EQ(config["num_key_value_heads"], 1);
  EXPECT_EQ(config["head_dim"], 4);
  EXPECT_EQ(config["intermediate_size"], 12);
  EXPECT_EQ(config["vocab_size"], 16);
  EXPECT_EQ(config["max_position_embeddings"], 128);
  EXPECT_FLOAT_EQ(config["rms_norm_eps"].get<float>(), 1e-5f);
  EXPECT_EQ(config["rope_theta"], 5e5);
  EXPECT_TRUE(config["rope_scaling"].is_null());
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(config["attention_bias"], true);
  EXPECT_EQ(config["mlp_bias"], false);
  EXPECT_EQ(checkpoint.format(), "GGUF v3");
  EXPECT_EQ(checkpoint.parameters(), 128 + 8 + 2 + 64 + 32 + 8 + 64 + 8);
  EXPECT_EQ(checkpoint.description()["tensor_types"], Json({{"F32", 8}}));
  EXPECT_NE(checkpoint.tokenizer().gguf, nullptr);
}

TEST_F(CheckpointFiles, L19_a_stated_head_width_wins) {
  const Checkpoint checkpoint = open(tiny("qwen3")
                                         .set_u32("qwen3.attention.key_length", 16)
                                         .set_u32("qwen3.attention.value_length", 16));
  EXPECT_EQ(checkpoint.config()["head_dim"], 16);
}

TEST_F(CheckpointFiles, gguf_names_become_those_of_hugging_face) {
  const Checkpoint checkpoint = open(tiny("qwen2")
                                         .tensor("output.weight", {16, 8}, counting(128))
                                         .tensor("blk.x.attn_q.weight", {1}, {1}));
  EXPECT_EQ(checkpoint.names(),
            (std::vector<std::string>{
                "blk.x.attn_q.weight", "lm_head.weight", "model.embed_tokens.weight",
                "model.layers.0.post_attention_layernorm.weight",
                "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.o_proj.weight",
                "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_proj.weight",
                "model.norm.weight", "rope_freqs.weight"}));
  EXPECT_EQ(checkpoint.config()["tie_word_embeddings"], false);
  EXPECT_EQ(checkpoint.find("absent"), nullptr);
}

TEST_F(CheckpointFiles, llama_rows_of_q_and_k_come_back_in_halves_order) {
  // Two heads of width 4: stored rows (0a 0b 1a 1b) are pairs, wanted are (0a 1a 0b 1b).
  const std::vector<float> order = {0, 2, 1, 3, 4, 6, 5, 7};
  const Checkpoint llama = open(tiny("llama"));
  const std::vector<float> q = values_of(*llama.find("model.layers.0.self_attn.q_proj.weight"));
  const std::vector<float> k = values_of(*llama.find("model.layers.0.self_attn.k_proj.weight"));
  for (std::size_t row = 0; row < 8; ++row) EXPECT_EQ(q[row * 8], order[row] * 8) << row;
  for (std::size_t row = 0; row < 4; ++row) EXPECT_EQ(k[row * 8], order[row] * 8) << row;
  EXPECT_EQ(values_of(*llama.find("model.layers.0.self_attn.q_proj.bias")), order);
  // Asked again, it is not rearranged again; o_proj never is.
  EXPECT_EQ(values_of(*llama.find("model.layers.0.self_attn.q_proj.bias")), order);
  EXPECT_EQ(values_of(*llama.find("model.layers.0.self_attn.o_proj.weight")), counting(64));
  const Checkpoint qwen = open(tiny("qwen2"));
  EXPECT_EQ(values_of(*qwen.find("model.layers.0.self_attn.q_proj.weight")), counting(64));
}

TEST_F(CheckpointFiles, rows_of_packed_blocks_move_whole) {
  std::string data;
  for (char row = 0; row < 8; ++row) data += std::string(34, row);
  const Checkpoint checkpoint =
      open(GgufBuilder(tiny("llama")).tensor("blk.1.attn_q.weight", {8, 32}, 8, data));
  const StoredTensor* q = checkpoint.find("model.layers.1.self_attn.q_proj.weight");
  ASSERT_EQ(q->bytes.size(), 8u * 34);
  for (const int row : {0, 1, 2, 3}) {
    EXPECT_EQ(static_cast<int>(q->bytes[static_cast<std::size_t>(row) * 34 + 5]),
              (std::vector<int>{0, 2, 1, 3})[static_cast<std::size_t>(row)]);
  }
}

TEST_F(CheckpointFiles, impossible_sizes_in_gguf_metadata_are_refused) {
  const auto with = [&](const std::string& key, uint32_t value) {
    return refusal_of([&] {
      open(GgufBuilder()
               .set_string("general.architecture", "llama")
               .set_u32("llama.block_count", 1)
               .set_u32("llama.context_length", 1)
               .set_u32("llama.embedding_length", key == "embedding_length" ? value : 8)
               .set_u32("llama.attention.head_count", key == "head_count" ? value : 2)
               .set_u32("llama.feed_forward_length", 8)
               .set_u32("llama.expert_count", key == "expert_count" ? value : 0));
    });
  };
  EXPECT_MENTIONS(with("head_count", 0), "head_count");
  EXPECT_MENTIONS(with("head_count", 3), "do not divide");
  EXPECT_MENTIONS(with("embedding_length", 0xFFFFFFFF), "embedding_length");
  EXPECT_MENTIONS(with("expert_count", 8), "mixture of experts");
  EXPECT_MENTIONS(refusal_of([&] {
                    open(tiny("llama")
                             .set_string("llama.rope.scaling.type", "linear")
                             .set_f32("llama.rope.scaling.factor", NAN));
                  }),
                  "not a finite number");
  EXPECT_MENTIONS(with("", 0), "vocab_size is missing");
  EXPECT_MENTIONS(refusal_of([&] { open(GgufBuilder()); }), "general.architecture is missing");
}

TEST_F(CheckpointFiles, T19_every_end_token_is_found) {
  const GenerationDefaults gguf =
      open(tiny("llama").set_u32("tokenizer.ggml.eot_token_id", 9)).generation();
  EXPECT_EQ(gguf.eos_token_ids, (std::vector<int64_t>{2, 9, 1}));  // not 3, which is plain text
  EXPECT_EQ(gguf.add_bos_token, false);

  write_folder();
  EXPECT_EQ(Checkpoint::open(folder_.path()).generation().eos_token_ids, (std::vector<int64_t>{7}));
  folder_.write("generation_config.json", R"({"eos_token_id":[5,6,7],"temperature":0.5})");
  folder_.write("tokenizer_config.json",
                R"({"eos_token":{"content":"</s>"},"add_bos_token":true})");
  folder_.write("tokenizer.json", R"({"added_tokens":[{"id":11,"content":"</s>"}]})");
  const GenerationDefaults folder = Checkpoint::open(folder_.path()).generation();
  EXPECT_EQ(folder.eos_token_ids, (std::vector<int64_t>{5, 6, 7, 11}));
  EXPECT_EQ(folder.add_bos_token, true);
  EXPECT_EQ(folder.sampling["temperature"], 0.5);

  write_folder(R"({"model_type":"llama"})");
  folder_.write("generation_config.json", "{}");
  folder_.write("tokenizer_config.json",
                R"({"eos_token":"</s>","added_tokens_decoder":{"12":{"content":"</s>"}}})");
  EXPECT_EQ(Checkpoint::open(folder_.path()).generation().eos_token_ids,
            (std::vector<int64_t>{12}));
  folder_.write("generation_config.json", R"({"eos_token_id":"x"})");
  EXPECT_MENTIONS(refusal_of([&] { Checkpoint::open(folder_.path()); }), "eos_token_id");
}

TEST_F(CheckpointFiles, chat_templates_are_found_wherever_they_stand) {
  using Templates = std::map<std::string, std::string>;
  EXPECT_EQ(open(tiny("llama")).chat_templates(),
            (Templates{{"default", "main"}, {"tool_use", "tools"}}));
  write_folder();
  EXPECT_TRUE(Checkpoint::open(folder_.path()).chat_templates().empty());
  folder_.write("tokenizer_config.json", R"({"chat_template":"one"})");
  EXPECT_EQ(Checkpoint::open(folder_.path()).chat_templates(), (Templates{{"default", "one"}}));
  folder_.write("tokenizer_config.json", R"({"chat_template":[{"name":"default","template":"two"},
                                            {"name":"rag","template":"three"}]})");
  folder_.write("chat_template.jinja", "four");
  folder_.write("additional_chat_templates/extra.jinja", "five");
  EXPECT_EQ(Checkpoint::open(folder_.path()).chat_templates(),
            (Templates{{"default", "four"}, {"extra", "five"}, {"rag", "three"}}));
}

TEST_F(CheckpointFiles, the_image_processor_is_found_in_either_file) {
  write_folder(R"({"model_type":"llava","text_config":{"model_type":"llama"}})");
  const auto found = [&] { return Checkpoint::open(folder_.path()).image_processor_config(); };
  EXPECT_TRUE(found().is_null());
  folder_.write("preprocessor_config.json", R"({"of":"its own"})");
  EXPECT_EQ(found(), Json({{"of", "its own"}}));
  folder_.write("processor_config.json", R"({"processor_class":"P"})");
  EXPECT_EQ(found(), Json({{"of", "its own"}}));
  folder_.write("processor_config.json", R"({"image_processor":{"of":"all"}})");
  EXPECT_EQ(found(), Json({{"of", "all"}}));
  folder_.write("processor_config.json", "[1]");
  EXPECT_MENTIONS(refusal_of(found), "processor_config.json");
}

TEST_F(CheckpointFiles, a_folder_is_read_and_its_faults_are_told) {
  EXPECT_MENTIONS(refusal_of([&] { Checkpoint::open(folder_.path()); }), "config.json");
  write_folder();
  const Checkpoint checkpoint = Checkpoint::open(folder_.path());
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"i", "w"}));
  EXPECT_EQ(values_of(*checkpoint.find("w")), (std::vector<float>{1, 2}));
  EXPECT_MENTIONS(refusal_of([&] { checkpoint.find("i"); }), "I64");
  EXPECT_EQ(checkpoint.tokenizer().folder, folder_.path());
  EXPECT_MENTIONS(refusal_of([&] { Checkpoint::open(folder_.file("model.safetensors")); }),
                  "config.json");
  EXPECT_MENTIONS(refusal_of([&] { Checkpoint::open(folder_.file("absent")); }), "absent");
  folder_.write("config.json", "[1]");
  EXPECT_MENTIONS(refusal_of([&] { Checkpoint::open(folder_.path()); }), "JSON object");
}

TEST_F(CheckpointFiles, the_hash_is_that_of_the_weight_file) {
  folder_.write("config.json", "{}");
  folder_.write("model.safetensors", testing::ByteWriter().text("{}").bytes());
  // sha256 of 02 00 00 00 00 00 00 00 '{' '}', by sha256sum.
  EXPECT_EQ(Checkpoint::open(folder_.path()).sha256(),
            "411a485216e432ece6b9af94fa32154cf79a2a56d4f81266baa50063f45092bd");
}

TEST_F(CheckpointFiles, weight_loader_reports_everything_at_once) {
  const Checkpoint checkpoint = open(tiny("llama"));
  WeightLoader loader(checkpoint);
  EXPECT_EQ(loader.take_float("model.norm.weight", {8}).sizes(), at::IntArrayRef({8}));
  EXPECT_EQ(loader.take("model.embed_tokens.weight", {16, 9}).shape, (std::vector<int64_t>{16, 9}));
  EXPECT_EQ(loader.take_float("model.absent.weight", {3, 4}).sizes(), at::IntArrayRef({3, 4}));
  EXPECT_EQ(loader.take_optional("model.absent.bias", {3}), std::nullopt);
  loader.ignore("rope_freqs.weight");
  const std::string text = refusal_of([&] { loader.finish(); });
  EXPECT_MENTIONS(text, "model.absent.weight is missing");
  EXPECT_MENTIONS(text, "model.embed_tokens.weight has the shape [16, 8]; expected [16, 9]");
  EXPECT_MENTIONS(text, "model.layers.0.self_attn.q_proj.weight is not part of the model");
  EXPECT_EQ(text.find("rope_freqs"), std::string::npos);
  EXPECT_EQ(text.find("model.absent.bias"), std::string::npos);
}

TEST_F(CheckpointFiles, weight_loader_is_content_when_all_is_taken) {
  const std::vector<float> w = {1, 2};
  const auto bytes = std::as_bytes(std::span(w));
  write_safetensors(folder_.file("model.safetensors"),
                    {{"w", "F32", {2}, bytes},
                     {"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {2}, bytes}},
                    {});
  folder_.write("config.json", "{}");
  const Checkpoint checkpoint = Checkpoint::open(folder_.path());
  WeightLoader loader(checkpoint);
  EXPECT_EQ(values_of(loader.take("w", {2})), w);
  EXPECT_NO_THROW(loader.finish());
}

TEST_F(CheckpointFiles, L18_a_head_that_is_neither_tied_nor_there_is_named) {
  const Checkpoint checkpoint = open(tiny("llama"));
  WeightLoader untied(checkpoint);
  untied.take_head("lm_head.weight", "model.embed_tokens.weight", false, {16, 8});
  EXPECT_MENTIONS(refusal_of([&] { untied.finish(); }),
                  "lm_head.weight is missing, although tie_word_embeddings is false");
  WeightLoader tied(checkpoint);
  const StoredTensor head =
      tied.take_head("lm_head.weight", "model.embed_tokens.weight", true, {16, 8});
  EXPECT_EQ(values_of(head), counting(128));
  const Checkpoint both = open(tiny("llama").tensor("output.weight", {16, 8}, counting(128)));
  WeightLoader stored(both);
  EXPECT_EQ(stored.take_head("lm_head.weight", "model.embed_tokens.weight", true, {16, 8}).name,
            "model.embed_tokens.weight");
  EXPECT_EQ(refusal_of([&] { stored.finish(); }).find("lm_head"), std::string::npos);
}

TEST_F(CheckpointFiles, weight_loader_stops_before_a_lie_costs_memory) {
  const Checkpoint checkpoint = open(tiny("llama"));
  WeightLoader huge(checkpoint);
  EXPECT_MENTIONS(refusal_of([&] {
                    huge.take("a", {int64_t{1} << 40, int64_t{1} << 40});
                  }),
                  "too large");
  WeightLoader many(checkpoint);
  EXPECT_MENTIONS(refusal_of([&] {
                    for (int i = 0; i < 1000; ++i) many.take("missing." + std::to_string(i), {1});
                  }),
                  "there may be more");
}

TEST(CheckpointAssets, the_default_model_is_read_as_its_description_says) {
  const char* chosen = std::getenv("COPPICE_ASSETS");
  const char* home = std::getenv("HOME");
  const std::string assets =
      chosen ? chosen : std::string(home ? home : "") + "/.cache/coppice/assets";
  const std::string path = assets + "/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there (make assets)";
  const Checkpoint checkpoint = Checkpoint::open(path);
  EXPECT_EQ(checkpoint.sha256(),
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53");
  EXPECT_EQ(checkpoint.file_bytes(), 98362432);
  EXPECT_EQ(checkpoint.names().size(), 272u);
  EXPECT_EQ(checkpoint.description()["tensor_types"],
            Json({{"F32", 61}, {"Q4_1", 210}, {"Q8_0", 1}}));
  EXPECT_EQ(checkpoint.config()["head_dim"], 64);
  EXPECT_EQ(checkpoint.config()["tie_word_embeddings"], true);
  EXPECT_EQ(checkpoint.config()["attention_bias"], false);
  EXPECT_EQ(checkpoint.generation().eos_token_ids, (std::vector<int64_t>{2, 0}));
  EXPECT_EQ(checkpoint.chat_templates().size(), 1u);
  WeightLoader loader(checkpoint);
  loader.take("model.layers.29.mlp.down_proj.weight", {576, 1536});
  loader.take("model.layers.29.self_attn.k_proj.weight", {192, 576});
  EXPECT_EQ(refusal_of([&] { loader.finish(); }).find("missing"), std::string::npos);
}

}  // namespace
}  // namespace coppice
