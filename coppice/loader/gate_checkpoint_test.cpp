#include "coppice/loader/gate_checkpoint.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <limits>

#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/loader/safetensors_file.h"
#include "tests/support/rival_gates.h"
#include "tests/support/scratch_folder.h"

namespace coppice {
namespace {

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

constexpr int64_t kLayers = 2, kHidden = 6, kWidth = 4, kHeads = 3;

std::string golden(const std::string& name) { return COPPICE_SOURCE_DIR "/tests/golden/" + name; }

// What tools/make_gate_golden.py writes.
at::Tensor golden_values(at::IntArrayRef shape, int64_t layer, int64_t salt) {
  const int64_t count = c10::multiply_integers(shape);
  return (at::arange(count, at::kLong).mul(7).add(layer * 3 + salt).remainder(16).sub(8))
      .to(at::kFloat)
      .reshape(shape);
}

GateWeights random_gate(const std::string& variant, int64_t hidden_layers) {
  GateWeights gate;
  gate.spec = {.variant = variant,
               .hidden_layers = hidden_layers,
               .width = kWidth,
               .layers = kLayers,
               .kv_heads = kHeads,
               .hidden_size = kHidden,
               .base_model = "tiny",
               .base_sha256 = std::string(64, 'a'),
               .training = {{"steps", 3}}};
  const bool shared = variant == "shared";
  const int64_t last = shared ? kHeads * kWidth : kWidth;
  const int64_t first = hidden_layers == 2 ? kWidth : last;
  const auto head = [&] { return shared ? at::randn({kWidth}) : at::randn({kHeads, kWidth}); };
  const auto bias = [&] { return at::randn({shared ? 1 : kHeads}); };
  const at::Tensor one_head = head(), one_bias = bias();
  for (int64_t l = 0; l < kLayers; ++l) {
    GateLayer layer;
    layer.w1 = at::randn({first, kHidden});
    layer.c1 = at::randn({first});
    if (hidden_layers == 2) {
      layer.w2 = at::randn({last, kWidth});
      layer.c2 = at::randn({last});
    }
    layer.head = variant == "local" ? head() : one_head;
    layer.bias = shared ? one_bias : bias();
    gate.layers.push_back(layer);
  }
  return gate;
}

void expect_equal(const GateWeights& a, const GateWeights& b, double tolerance) {
  ASSERT_EQ(a.layers.size(), b.layers.size());
  const auto same = [&](const at::Tensor& x, const at::Tensor& y) {
    if (!x.defined() || !y.defined()) return x.defined() == y.defined();
    return x.sizes() == y.sizes() && at::allclose(x, y, tolerance, 0);
  };
  for (std::size_t l = 0; l < a.layers.size(); ++l) {
    EXPECT_TRUE(same(a.layers[l].w1, b.layers[l].w1));
    EXPECT_TRUE(same(a.layers[l].c1, b.layers[l].c1));
    EXPECT_TRUE(same(a.layers[l].w2, b.layers[l].w2));
    EXPECT_TRUE(same(a.layers[l].c2, b.layers[l].c2));
    EXPECT_TRUE(same(a.layers[l].head, b.layers[l].head));
    EXPECT_TRUE(same(a.layers[l].bias, b.layers[l].bias));
  }
}

class Gate : public ::testing::Test {
 protected:
  Gate() { at::manual_seed(1); }
  ScratchFolder folder_;
};

TEST_F(Gate, every_variant_survives_our_format) {
  for (const char* variant : {"shared", "head-row", "local"}) {
    for (const int64_t hidden_layers : {1, 2}) {
      SCOPED_TRACE(std::string(variant) + " " + std::to_string(hidden_layers));
      const GateWeights gate = random_gate(variant, hidden_layers);
      save_gate(folder_.file("f32"), gate, StorageType::kF32);
      const GateWeights exact = load_gate(folder_.file("f32"));
      expect_equal(gate, exact, 0);
      EXPECT_EQ(exact.spec.variant, variant);
      EXPECT_EQ(exact.spec.hidden_layers, hidden_layers);
      EXPECT_EQ(exact.spec.training["steps"], 3);
      EXPECT_EQ(exact.spec.base_sha256, std::string(64, 'a'));
      EXPECT_EQ(exact.layers[0].head.is_same(exact.layers[1].head),
                std::string(variant) != "local");
      EXPECT_EQ(exact.layers[0].bias.is_same(exact.layers[1].bias),
                std::string(variant) == "shared");
      save_gate(folder_.file("bf16"), gate, StorageType::kBF16);
      const GateWeights rounded = load_gate(folder_.file("bf16"));
      expect_equal(gate, rounded, 1.0 / 256);
      EXPECT_FALSE(gate.layers[0].w1.equal(rounded.layers[0].w1));
      EXPECT_TRUE(gate.layers[0].bias.equal(rounded.layers[0].bias));
      EXPECT_TRUE(gate.layers[0].c1.equal(rounded.layers[0].c1));
    }
  }
}

TEST_F(Gate, other_kinds_survive_our_format_and_say_what_they_are) {
  for (const GateSpec& spec : testing::rival_specs({kLayers, kHeads, kHidden, 2 * kHeads})) {
    SCOPED_TRACE(spec.kind + " " + std::to_string(spec.hidden_layers));
    const GateWeights gate = testing::random_rival_gate(spec);
    save_gate(folder_.file("f32"), gate, StorageType::kF32);
    save_gate(folder_.file("bf16"), gate, StorageType::kBF16);
    const GateWeights exact = load_gate(folder_.file("f32"));
    const GateWeights rounded = load_gate(folder_.file("bf16"));
    EXPECT_EQ(exact.spec.kind, spec.kind);
    EXPECT_EQ(exact.spec.sinks, spec.sinks);
    EXPECT_EQ(exact.spec.query_heads, spec.query_heads);
    for (const GatePart& part : gate_parts(spec))
      for (std::size_t l = 0; l < kLayers; ++l) {
        const at::Tensor& wanted = gate.layers[l].*part.tensor;
        EXPECT_TRUE(wanted.equal(exact.layers[l].*part.tensor)) << part.name;
        const at::Tensor& near = rounded.layers[l].*part.tensor;
        EXPECT_TRUE(at::allclose(wanted, near, 1.0 / 256, 0)) << part.name;
        EXPECT_EQ(wanted.equal(near), !part.matrix) << part.name;
      }
    const SafetensorsFile file = SafetensorsFile::open(folder_.file("f32"));
    EXPECT_EQ(file.metadata().at("format_version"), "2");
  }
}

TEST_F(Gate, other_kinds_with_wrong_sizes_are_refused) {
  const std::vector<GateSpec> sound = testing::rival_specs({kLayers, kHeads, kHidden, 2 * kHeads});
  const auto refuse = [&](std::size_t which, const std::function<void(GateSpec&)>& spoil,
                          const char* says) {
    GateSpec spec = sound[which];
    spoil(spec);
    EXPECT_MENTIONS(refusal_of([&] { spec.validate(); }), says);
  };
  refuse(
      0, [](GateSpec& s) { s.kind = "kvzp"; }, "retention, kvzap, fastkvzip");
  refuse(
      0, [](GateSpec& s) { s.variant = "shared"; }, "local");
  refuse(
      0, [](GateSpec& s) { s.hidden_layers = 2; }, "hidden_layers");
  refuse(
      0, [](GateSpec& s) { s.width = 0; }, "width");
  refuse(
      2, [](GateSpec& s) { s.sinks = 0; }, "sinks");
  refuse(
      2, [](GateSpec& s) { s.sinks = int64_t{1} << 40; }, "sinks");
  refuse(
      2, [](GateSpec& s) { s.query_heads = kHeads + 1; }, "query_heads");
  refuse(
      2, [](GateSpec& s) { s.hidden_layers = 1; }, "hidden layers");
  GateWeights gate = testing::random_rival_gate(sound[2]);
  gate.layers[1].q_norm = at::ones({3});
  EXPECT_MENTIONS(refusal_of([&] { gate.validate(); }), "q_norm of layer 1");
}

TEST_F(Gate, a_shared_head_is_stored_once) {
  save_gate(folder_.file("g"), random_gate("head-row", 2), StorageType::kBF16);
  const SafetensorsFile file = SafetensorsFile::open(folder_.file("g"));
  EXPECT_NE(file.find("head"), nullptr);
  EXPECT_EQ(file.find("layers.0.head"), nullptr);
  EXPECT_EQ(file.entries().size(), 5u * kLayers + 1);
  EXPECT_EQ(file.metadata().at("format"), "coppice-gate");
  save_gate(folder_.file("again"), load_gate(folder_.file("g")), StorageType::kBF16);
  EXPECT_EQ(read_text_file(folder_.file("g")), read_text_file(folder_.file("again")));
}

TEST_F(Gate, the_published_archive_of_two_hidden_layers_is_read) {
  std::filesystem::copy(golden("gate_rg10.pth"), folder_.file("trimkv_weights.pth"));
  folder_.write("config.json", R"({"base_model":"Qwen/Qwen3-4B","memory_size":128})");
  const GateWeights gate = load_gate(folder_.path());
  EXPECT_EQ(gate.spec.variant, "head-row");
  EXPECT_EQ(gate.spec.hidden_layers, 2);
  EXPECT_EQ(gate.spec.width, kWidth);
  EXPECT_EQ(gate.spec.layers, kLayers);
  EXPECT_EQ(gate.spec.kv_heads, kHeads);
  EXPECT_EQ(gate.spec.hidden_size, kHidden);
  EXPECT_EQ(gate.spec.base_model, "Qwen/Qwen3-4B");
  EXPECT_EQ(gate.spec.training["memory_size"], 128);
  for (int64_t l = 0; l < kLayers; ++l) {
    const GateLayer& layer = gate.layers[static_cast<std::size_t>(l)];
    EXPECT_TRUE(layer.w1.equal(golden_values({4, 6}, l, 0)));
    EXPECT_TRUE(layer.c1.equal(golden_values({4}, l, 1)));
    EXPECT_TRUE(layer.w2.equal(golden_values({4, 4}, l, 2)));
    EXPECT_TRUE(layer.c2.equal(golden_values({4}, l, 3)));
    EXPECT_TRUE(layer.head.equal(golden_values({3, 4}, 0, 4)));
    EXPECT_TRUE(layer.bias.equal(golden_values({3}, l, 5)));
  }
}

TEST_F(Gate, the_published_archive_of_one_hidden_layer_is_read) {
  const GateWeights gate = load_gate(golden("gate_rg.pth"));
  EXPECT_EQ(gate.spec.variant, "local");
  EXPECT_EQ(gate.spec.hidden_layers, 1);
  EXPECT_TRUE(gate.layers[1].w1.equal(golden_values({4, 6}, 1, 0)));
  EXPECT_TRUE(gate.layers[1].head.equal(golden_values({3, 4}, 1, 2)));
  EXPECT_TRUE(gate.layers[1].bias.equal(golden_values({3}, 1, 3)));
  EXPECT_FALSE(gate.layers[1].w2.defined());
}

TEST_F(Gate, import_keeps_weights_and_record) {
  const GateSpec spec = import_gate(golden("gate_rg10.pth"), folder_.file("ours"),
                                    {.base_model = "m", .base_sha256 = "abc"});
  EXPECT_EQ(spec.base_sha256, "abc");
  const GateWeights ours = load_gate(folder_.file("ours"));
  EXPECT_EQ(ours.spec.base_model, "m");
  expect_equal(ours, load_gate(golden("gate_rg10.pth")), 0);
}

// A published gate as safetensors, whose tensors a test may change.
class PublishedGate : public Gate {
 protected:
  PublishedGate() {
    for (int64_t l = 0; l < kLayers; ++l) {
      set(l, "linear1.weight", at::randn({kWidth, kHidden}));
      set(l, "linear1.bias", at::randn({kWidth}));
      set(l, "linear2.weight", at::randn({kWidth, kWidth}));
      set(l, "linear2.bias", at::randn({kWidth}));
      set(l, "linear3.weight", head_);
      set(l, "bias", at::randn({kHeads}));
    }
  }
  static std::string key(int64_t layer, const std::string& part) {
    return "model.layers." + std::to_string(layer) + ".self_attn.retention_gate." + part;
  }
  void set(int64_t layer, const std::string& part, const at::Tensor& value) {
    tensors_[key(layer, part)] = value.contiguous();
  }
  std::string write() {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, tensor] : tensors_) {
      entries.push_back(
          {name,
           "F32",
           tensor.sizes().vec(),
           {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
    }
    write_safetensors(folder_.file("p"), std::move(entries), metadata_);
    return folder_.file("p");
  }
  std::string refusal() {
    const std::string path = write();
    return refusal_of([&] { load_gate(path); });
  }
  at::Tensor head_ = at::randn({kHeads, kWidth});
  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, std::string> metadata_ = {{"base_sha256", "f00"}, {"note", "n"}};
};

TEST_F(PublishedGate, a_head_under_one_layer_or_under_all_is_shared) {
  const GateWeights all = load_gate(write());
  EXPECT_EQ(all.spec.variant, "head-row");
  EXPECT_EQ(all.spec.base_sha256, "f00");
  EXPECT_EQ(all.spec.training["note"], "n");
  tensors_.erase(key(1, "linear3.weight"));
  const GateWeights one = load_gate(write());
  EXPECT_TRUE(one.layers[1].head.equal(head_));
  expect_equal(all, one, 0);
}

TEST_F(PublishedGate, heads_that_differ_need_the_variant_local) {
  set(1, "linear3.weight", head_ + 1);
  EXPECT_MENTIONS(refusal(), "differs between the layers 0 and 1");
  const GateWeights local = load_gate(write(), {.variant = "local"});
  EXPECT_TRUE(local.layers[0].head.equal(head_));
  EXPECT_TRUE(local.layers[1].head.equal(head_ + 1));
  EXPECT_MENTIONS(refusal_of([&] { load_gate(write(), {.variant = "shared"}); }), "shared");
}

TEST_F(PublishedGate, L22_a_layer_too_few_and_other_names_are_refused) {
  auto whole = tensors_;
  for (auto it = tensors_.begin(); it != tensors_.end();) {
    it = it->first.starts_with("model.layers.0.") ? tensors_.erase(it) : std::next(it);
  }
  EXPECT_MENTIONS(refusal(), "layer 0 is missing");
  tensors_ = whole;
  tensors_.erase(key(1, "bias"));
  EXPECT_MENTIONS(refusal(), "bias");
  tensors_.clear();
  for (const auto& [name, tensor] : whole) tensors_["base_model." + name] = tensor;
  EXPECT_MENTIONS(refusal(), "is no tensor of a gate");
  tensors_ = whole;
  tensors_["model.language_model.layers.1.self_attn.retention_gate.bias"] = at::zeros({kHeads});
  EXPECT_MENTIONS(refusal(), "is no tensor of a gate");
  tensors_ = whole;
  set(1, "linear4.weight", at::zeros({1}));
  EXPECT_MENTIONS(refusal(), "has 7 tensors; expected 6");
}

TEST_F(PublishedGate, L22_shapes_that_disagree_are_refused) {
  set(1, "bias", at::randn({kHeads + 1}));
  EXPECT_MENTIONS(refusal(), "bias");
  set(1, "bias", at::randn({kHeads}));
  set(0, "linear2.weight", at::randn({kWidth, kWidth + 1}));
  EXPECT_MENTIONS(refusal(), "linear2.weight");
}

TEST_F(PublishedGate, L22_values_that_are_not_finite_are_refused) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    at::Tensor bias = at::zeros({kHeads});
    bias[1] = bad;
    set(1, "bias", bias);
    EXPECT_MENTIONS(refusal(), "not finite");
  }
}

TEST_F(Gate, L22_empty_and_foreign_files_are_refused) {
  EXPECT_MENTIONS(refusal_of([&] { load_gate(folder_.write("empty", "")); }), "empty");
  write_safetensors(folder_.file("none"), {}, {});
  EXPECT_MENTIONS(refusal_of([&] { load_gate(folder_.file("none")); }), "no tensors");
  EXPECT_MENTIONS(refusal_of([&] { load_gate(folder_.write("text", "hello, world")); }), "text");
  EXPECT_MENTIONS(refusal_of([&] { load_gate(folder_.file("absent")); }), "absent");
  std::filesystem::create_directory(folder_.file("sub"));
  EXPECT_MENTIONS(refusal_of([&] { load_gate(folder_.file("sub")); }), "trimkv_weights.pth");
}

TEST_F(Gate, L22_a_gate_for_another_model_is_refused) {
  const GateSpec spec = random_gate("head-row", 2).spec;
  const GateBase fits{kLayers, kHeads, kHidden, std::string(64, 'a')};
  EXPECT_NO_THROW(check_gate(spec, fits));
  const auto refusal = [&](auto change) {
    GateBase base = fits;
    change(base);
    return refusal_of([&] { check_gate(spec, base, false); });
  };
  EXPECT_MENTIONS(refusal([](GateBase& base) { base.layers = 3; }), "2 layers, the model 3");
  EXPECT_MENTIONS(refusal([](GateBase& base) { base.kv_heads = 1; }), "3 KV heads, the model 1");
  EXPECT_MENTIONS(refusal([](GateBase& base) { base.hidden_size = 7; }), "6 as hidden size");
  EXPECT_MENTIONS(refusal([](GateBase& base) { base.sha256 = "b"; }), "trained for other weights");
  GateBase other = fits;
  other.sha256 = "b";
  EXPECT_NO_THROW(check_gate(spec, other, true));
  other.layers = 3;
  EXPECT_THROW(check_gate(spec, other, true), Error);
  GateSpec unnamed = spec;
  unnamed.base_sha256.clear();
  EXPECT_NO_THROW(check_gate(unnamed, {kLayers, kHeads, kHidden, "b"}));
}

TEST_F(Gate, L22_our_files_with_a_wrong_part_are_refused) {
  const GateWeights gate = random_gate("head-row", 2);
  save_gate(folder_.file("g"), gate, StorageType::kF32);
  const SafetensorsFile file = SafetensorsFile::open(folder_.file("g"));
  const auto refusal = [&](auto change) {
    std::vector<SafetensorsEntry> entries = file.entries();
    std::map<std::string, std::string> metadata = file.metadata();
    change(entries, metadata);
    write_safetensors(folder_.file("bad"), entries, metadata);
    return refusal_of([&] { load_gate(folder_.file("bad")); });
  };
  EXPECT_MENTIONS(refusal([](auto& entries, auto&) { entries.pop_back(); }), "is missing");
  EXPECT_MENTIONS(refusal([](auto& entries, auto&) { entries[0].name = "x"; }), "is missing");
  EXPECT_MENTIONS(refusal([](auto& entries, auto&) {
                    entries.push_back(entries[0]);
                    entries.back().name = "extra";
                  }),
                  "extra is no tensor");
  EXPECT_MENTIONS(refusal([](auto&, auto& metadata) { metadata["layers"] = "1"; }), "no tensor");
  EXPECT_MENTIONS(refusal([](auto&, auto& metadata) { metadata["layers"] = "99999999999"; }),
                  "layers must be from 1");
  EXPECT_MENTIONS(refusal([](auto&, auto& metadata) { metadata["width"] = "4x"; }), "integer");
  EXPECT_MENTIONS(refusal([](auto&, auto& metadata) { metadata["width"] = "8"; }), "shape");
  EXPECT_MENTIONS(refusal([](auto&, auto& metadata) { metadata["variant"] = "x"; }), "variant");
  EXPECT_MENTIONS(refusal([](auto&, auto& metadata) { metadata.erase("variant"); }), "variant");
  EXPECT_MENTIONS(refusal([](auto&, auto& metadata) { metadata["format_version"] = "3"; }),
                  "version 3");
  EXPECT_MENTIONS(refusal([](auto&, auto& metadata) { metadata["training"] = "{"; }), "JSON");
}

TEST_F(Gate, weights_that_break_their_variant_are_not_written) {
  GateWeights gate = random_gate("head-row", 2);
  gate.layers[1].head = gate.layers[1].head + 1;
  EXPECT_MENTIONS(refusal_of([&] { save_gate(folder_.file("g"), gate, StorageType::kF32); }),
                  "shares it");
  EXPECT_MENTIONS(refusal_of([&] {
                    save_gate(folder_.file("g"), random_gate("local", 1), StorageType::kQ8_0);
                  }),
                  "BF16 or F32");
  EXPECT_FALSE(std::filesystem::exists(folder_.file("g")));
}

TEST(ShippedGate, L22_fits_the_default_model) {
  const GateSpec spec = read_gate_spec(COPPICE_SOURCE_DIR "/gates/smollm2-135m.safetensors");
  EXPECT_EQ(spec.variant, "head-row");
  EXPECT_EQ(spec.hidden_layers, 1);
  EXPECT_EQ(spec.width, 128);
  EXPECT_NO_THROW(check_gate(
      spec, {30, 3, 576, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"}));
}

}  // namespace
}  // namespace coppice
