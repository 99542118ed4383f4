// GGUF files: the parser, typed access to every value, the configuration made from them, and the
// unpacking of every tensor.
#include <memory>

#include "coppice/core/error.h"
#include "coppice/loader/checkpoint_parts.h"
#include "coppice/ops/dequantize.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/gguf_builder.h"

namespace {

using namespace coppice;
using testing::GgufBuilder;

template <typename Call>
void allow_errors(const Call& call) {
  try {
    call();
  } catch (const Error&) {
  }
}

void use(const GgufFile& file) {
  for (const auto& [key, value] : file.metadata()) {
    allow_errors([&] { file.find_string(key); });
    allow_errors([&] { file.find_int(key); });
    allow_errors([&] { file.find_float(key); });
    allow_errors([&] { file.find_bool(key); });
    allow_errors([&] { file.find_strings(key); });
    allow_errors([&] { file.find_ints(key); });
    allow_errors([&] { file.find_floats(key); });
    allow_errors([&] { file.find_bools(key); });
  }
  allow_errors([&] { config_from_gguf(file); });
  allow_errors([&] { generation_from_gguf(file); });
  for (const StoredTensor& tensor : file.tensors()) {
    checkpoint_name(tensor.name);
    const auto values = static_cast<std::size_t>(tensor.rows() * tensor.cols());
    std::vector<float> out(values);
    ops::dequantize_row(tensor.type, tensor.bytes, out);
  }
}

GgufBuilder model(uint32_t version, const std::string& arch) {
  return GgufBuilder(version)
      .set_string("general.architecture", arch)
      .set_u32("general.alignment", 32)
      .set_u32(arch + ".block_count", 1)
      .set_u32(arch + ".context_length", 64)
      .set_u32(arch + ".embedding_length", 32)
      .set_u32(arch + ".feed_forward_length", 32)
      .set_u32(arch + ".attention.head_count", 2)
      .set_f32(arch + ".rope.freq_base", 1e4f)
      .set_string(arch + ".rope.scaling.type", "linear")
      .set_u32("tokenizer.ggml.eos_token_id", 1)
      .set_bool("tokenizer.ggml.add_bos_token", true)
      .set_strings("tokenizer.ggml.tokens", {"a", "<|im_end|>", ""})
      .set_i32s("tokenizer.ggml.token_type", {1, 3, 1});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  allow_errors([&] {
    use(GgufFile::parse({reinterpret_cast<const std::byte*>(data), size}, nullptr, "input"));
  });
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  seeds.push_back(model(3, "llama").tensor("token_embd.weight", {2, 2}, {1, 2, 3, 4}).bytes());
  seeds.push_back(
      model(2, "qwen3").tensor("blk.0.attn_q.weight", {1, 32}, 8, std::string(34, 'x')).bytes());
  // One block of every type of the format.
  constexpr std::pair<uint32_t, std::size_t> kTypes[] = {
      {1, 2},    {2, 18},   {3, 20},   {6, 22},   {7, 24},  {8, 34}, {10, 84},
      {11, 110}, {12, 144}, {13, 176}, {14, 210}, {20, 18}, {30, 2}};
  for (const auto& [type, bytes] : kTypes) {
    const int64_t values = type == 1 || type == 30 ? 1 : type >= 10 && type <= 14 ? 256 : 32;
    seeds.push_back(GgufBuilder().tensor("t", {values}, type, std::string(bytes, '\x55')).bytes());
  }
  return seeds;
}
