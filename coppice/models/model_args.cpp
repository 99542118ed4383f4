#include "coppice/models/model_args.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "coppice/core/error.h"
#include "coppice/models/registry.h"

namespace coppice {
namespace {

// No model comes near; keeps every product of two sizes far from overflow.
constexpr int64_t kMaxSize = int64_t{1} << 28;
constexpr int64_t kMaxLayers = 10000;

// Values by key, null counting as absent; `where` names the object in messages.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail_argument("{}: expected an object", where_);
  }

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  const Json& at(const char* key) const {
    if (!has(key)) fail_argument("{}: \"{}\" is missing", where_, key);
    return object_[key];
  }

  int64_t size(const char* key, int64_t max = kMaxSize) const {
    const Json& value = at(key);
    int64_t number = 0;
    if (value.is_number_unsigned())
      number =
          static_cast<int64_t>(std::min(value.get<uint64_t>(), static_cast<uint64_t>(max) + 1));
    else if (value.is_number_integer())
      number = value.get<int64_t>();
    if (number < 1 || number > max)
      fail_argument("{}: \"{}\" must be a whole number from 1 to {}, got {}", where_, key, max,
                    dump_json(value).substr(0, 40));
    return number;
  }
  int64_t size_or(const char* key, int64_t fallback) const {
    return has(key) ? size(key) : fallback;
  }

  double positive(const char* key) const {
    const Json& value = at(key);
    const double number = value.is_number() ? value.get<double>() : 0.0;
    if (!(number > 0) || !std::isfinite(number))
      fail_argument("{}: \"{}\" must be a number above 0, got {}", where_, key,
                    dump_json(value).substr(0, 40));
    return number;
  }
  double positive_or(const char* key, double fallback) const {
    return has(key) ? positive(key) : fallback;
  }

  bool flag(const char* key) const {
    if (!has(key)) return false;
    if (!object_[key].is_boolean())
      fail_argument("{}: \"{}\" must be true or false, got {}", where_, key,
                    dump_json(object_[key]).substr(0, 40));
    return object_[key].get<bool>();
  }

  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string())
      fail_argument("{}: \"{}\" must be a string, got {}", where_, key,
                    dump_json(value).substr(0, 40));
    return value.get<std::string>();
  }

 private:
  const Json& object_;
  std::string where_;
};

void read_rope_scaling(const Reader& scaling, int64_t max_positions, RopeArgs& rope) {
  // "type" is the older name of the key.
  if (scaling.has("rope_type"))
    rope.rope_type = scaling.text("rope_type");
  else if (scaling.has("type"))
    rope.rope_type = scaling.text("type");
  if (rope.rope_type == "default") return;
  if (rope.rope_type != "linear" && rope.rope_type != "llama3")
    fail_argument("rope_type \"{}\" is not supported; supported are: default, linear, llama3",
                  rope.rope_type);
  rope.factor = scaling.positive("factor");
  if (rope.rope_type == "linear") return;
  rope.low_freq_factor = scaling.positive("low_freq_factor");
  rope.high_freq_factor = scaling.positive("high_freq_factor");
  if (rope.high_freq_factor <= rope.low_freq_factor)
    fail_argument("rope scaling: high_freq_factor must be above low_freq_factor, got {} and {}",
                  rope.high_freq_factor, rope.low_freq_factor);
  rope.original_max_position_embeddings =
      scaling.size_or("original_max_position_embeddings", max_positions);
}

// Three numbers that divide the frequencies.
std::vector<int64_t> read_sections(const Json& value, int64_t head_dim) {
  std::vector<int64_t> sections;
  for (const Json& one : value.is_array() ? value : Json::array()) {
    const bool fits = one.is_number_integer() && one >= 0 && one <= head_dim;
    sections.push_back(fits ? one.get<int64_t>() : -1);
  }
  const bool fits = sections.size() == 3 && std::ranges::min(sections) >= 0 &&
                    sections[0] + sections[1] + sections[2] == head_dim / 2;
  if (!fits)
    fail_argument("mrope_section must be three numbers that sum to head_dim / 2 = {}, got {}",
                  head_dim / 2, dump_json(value).substr(0, 60));
  return sections;
}

// Of architectures with three-part positions.
void read_mrope(const Reader& scaling, const Json& config, ModelArgs& args) {
  if (scaling.has("mrope_interleaved") && !scaling.flag("mrope_interleaved"))
    fail_argument("mrope_interleaved false is not supported");
  if (scaling.has("mrope_section"))
    args.rope.mrope_section = read_sections(config["mrope_section"], args.head_dim);
}

// The key's name and layout changed: rope_theta beside rope_scaling, or both in rope_parameters.
void read_rope(const Json& config, const Reader& top, ModelArgs& args) {
  args.rope_theta = top.positive_or("rope_theta", args.rope_theta);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!top.has(key)) continue;
    const Reader scaling(config[key], key);
    args.rope_theta = scaling.positive_or("rope_theta", args.rope_theta);
    if (scaling.positive_or("partial_rotary_factor", 1.0) != 1.0)
      fail_argument("{}: a partial_rotary_factor other than 1 is not supported", key);
    read_rope_scaling(scaling, args.max_position_embeddings, args.rope);
    if (has_three_part_positions(args.model_type)) read_mrope(scaling, config[key], args);
  }
}

// What would change the result if it were ignored.
void refuse_unsupported(const Reader& top, const ModelArgs& args) {
  if (args.hidden_act != "silu")
    fail_argument("hidden_act \"{}\" is not supported; supported is: silu", args.hidden_act);
  if (top.flag("use_sliding_window"))
    fail_argument("use_sliding_window: sliding windows are not supported");
  if (top.has("quantization_config"))
    fail_argument("quantization_config: quantised safetensors are not supported; use a GGUF file");
  if (top.positive_or("partial_rotary_factor", 1.0) != 1.0)
    fail_argument("a partial_rotary_factor other than 1 is not supported");
}

void read_heads(const Reader& top, ModelArgs& args) {
  args.num_attention_heads = top.size("num_attention_heads");
  args.num_key_value_heads = top.size_or("num_key_value_heads", args.num_attention_heads);
  if (args.num_attention_heads % args.num_key_value_heads != 0)
    fail_argument("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                  args.num_attention_heads, args.num_key_value_heads);
  if (!top.has("head_dim") && args.hidden_size % args.num_attention_heads != 0)
    fail_argument(
        "hidden_size {} is not a multiple of num_attention_heads {} and no head_dim is "
        "given",
        args.hidden_size, args.num_attention_heads);
  args.head_dim = top.size_or("head_dim", args.hidden_size / args.num_attention_heads);
  if (args.head_dim % 2 != 0) fail_argument("head_dim must be even, got {}", args.head_dim);
  if (args.head_dim > kMaxSize / args.num_attention_heads)
    fail_argument("{} heads of {} dimensions are more than supported", args.num_attention_heads,
                  args.head_dim);
}

}  // namespace

ModelArgs ModelArgs::from_config(const Json& config) {
  const Reader top(config, "model config");
  ModelArgs args;
  args.model_type = top.text("model_type");
  check_supported(args.model_type);
  args.hidden_size = top.size("hidden_size");
  args.intermediate_size = top.size("intermediate_size");
  args.num_hidden_layers = top.size("num_hidden_layers", kMaxLayers);
  args.vocab_size = top.size("vocab_size");
  args.max_position_embeddings = top.size("max_position_embeddings");
  args.rms_norm_eps = top.positive_or("rms_norm_eps", args.rms_norm_eps);
  if (top.has("hidden_act")) args.hidden_act = top.text("hidden_act");
  args.tie_word_embeddings = top.flag("tie_word_embeddings");
  args.attention_bias = top.flag("attention_bias");
  args.mlp_bias = top.flag("mlp_bias");
  read_heads(top, args);
  if (has_three_part_positions(args.model_type))  // of the published models
    args.rope.mrope_section = {args.head_dim / 2 - 2 * (args.head_dim * 5 / 32),
                               args.head_dim * 5 / 32, args.head_dim * 5 / 32};
  read_rope(config, top, args);
  if (top.has("deepstack_layers"))
    args.deepstack_layers = top.size("deepstack_layers", args.num_hidden_layers);
  refuse_unsupported(top, args);
  return args;
}

}  // namespace coppice
