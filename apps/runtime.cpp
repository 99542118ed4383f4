#include "apps/runtime.h"

#include <ATen/Parallel.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>

#include "apps/folders.h"
#include "apps/hash_cache.h"
#include "apps/usage.h"
#include "coppice/cache/memory_plan.h"
#include "coppice/core/error.h"
#include "coppice/core/log.h"
#include "coppice/core/mapped_file.h"
#include "coppice/engine/load_text.h"
#include "coppice/ops/parallel.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

GateBase sizes_of(const Checkpoint& checkpoint) {
  const ModelArgs args = ModelArgs::from_config(checkpoint.config());
  return {.layers = args.num_hidden_layers,
          .kv_heads = args.num_key_value_heads,
          .hidden_size = args.hidden_size,
          .sha256 = {}};
}

// The shipped retention gate trained for this very model file; empty when there is none. The file
// is hashed only where a gate has the model's sizes.
std::string shipped_gate(Checkpoint& checkpoint) {
  const GateBase base = sizes_of(checkpoint);
  std::error_code ignored;
  std::string found;
  for (const auto& entry : fs::directory_iterator(gates_folder(), ignored)) {
    const std::string path = entry.path().string();
    if (entry.path().extension() != ".safetensors") continue;
    const GateSpec spec = read_gate_spec(path);
    const bool fits = spec.kind == "retention" && spec.layers == base.layers &&
                      spec.kv_heads == base.kv_heads && spec.hidden_size == base.hidden_size;
    if (fits && (found.empty() || path < found) && spec.base_sha256 == find_sha256(checkpoint))
      found = path;
  }
  return found;
}

}  // namespace

std::optional<ChatTemplate> find_template(const Checkpoint& checkpoint,
                                          const Tokenizer& tokenizer) {
  const auto& templates = checkpoint.chat_templates();
  const auto text_of = [&tokenizer](std::optional<int32_t> id) {
    return id ? tokenizer.token_text(*id) : std::string();
  };
  std::string source;
  if (const auto found = templates.find("default"); found != templates.end()) {
    source = found->second;
  } else if (!templates.empty()) {
    source = templates.begin()->second;
  } else if (chatml_fits([&tokenizer](std::string_view text) {
               const auto id = tokenizer.find_token(text);
               return id && tokenizer.is_special(*id);
             })) {
    log_warning(
        "{} brings no chat template; its vocabulary has the tokens of ChatML, which is used",
        checkpoint.path());
    source = kChatmlTemplate;
  } else {
    return std::nullopt;
  }
  return ChatTemplate(source, {.special_tokens = {{"bos_token", text_of(tokenizer.bos_id())},
                                                  {"eos_token", text_of(tokenizer.eos_id())},
                                                  {"pad_token", text_of(tokenizer.pad_id())},
                                                  {"unk_token", text_of(tokenizer.unk_id())}},
                               .clock = {}});
}

std::string model_path(const std::string& model) {
  if (model != "smollm2") return model;
  const fs::path path = assets_folder() / "SmolLM2-135M-Instruct.Q4_1.gguf";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    fail(ErrorCode::kNotFound,
         "the default model is not at {}; `make demo` or `scripts/fetch smollm2` fetches it",
         path.string());
  }
  return path.string();
}

std::string gate_path(const ModelOptions& options, Checkpoint& checkpoint) {
  if (options.gate == "none") return {};
  return options.gate.empty() ? shipped_gate(checkpoint) : options.gate;
}

std::optional<GateWeights> find_gate(const ModelOptions& options, Checkpoint& checkpoint) {
  const std::string path = gate_path(options, checkpoint);
  if (path.empty()) return std::nullopt;
  GateWeights gate = load_gate(path);
  GateBase base = sizes_of(checkpoint);
  base.sha256 = find_sha256(checkpoint);
  check_gate(gate.spec, base);
  return gate;
}

EvictionConfig eviction_config(const ModelOptions& options, const std::string& gate_kind,
                               int64_t budget_entries) {
  EvictionConfig config;
  config.policy = options.policy;
  if (config.policy.empty()) {
    config.policy = default_policy(gate_kind);
    if (gate_kind.empty() && budget_entries != EvictionConfig::kUnbounded) {
      log_warning("this model has no retention gate: policy streaming (first tokens and newest)");
    }
  }
  config.budget_entries = budget_entries;
  config.sinks = options.sinks;
  config.recent = options.recent;
  config.floor = options.floor;
  config.lookahead = options.lookahead;
  config.parity_reference = options.parity_reference;
  config.buffer = options.buffer;
  config.options = options.policy_options;
  return config;
}

int64_t budget_entries(const ModelOptions& options, const CacheConfig& cache, int64_t tokens) {
  if (options.budget.unit != KvBudget::Unit::kBytes) return options.budget.entries_for(tokens);
  return plan_within(cache, options.budget.bytes, options.chunk).budget_entries;
}

at::ScalarType kv_dtype(const ModelOptions& options) {
  if (options.kv_dtype == "float32") return at::kFloat;
  return options.kv_dtype == "bfloat16" ? at::kBFloat16 : at::kHalf;
}

WeightMode weight_mode(const ModelOptions& options) {
  return options.weights == "float32" ? WeightMode::kFloat32 : WeightMode::kPacked;
}

void set_threads(const ModelOptions& options) {
  if (options.threads > 0) ops::set_num_threads(static_cast<int>(options.threads));
  // Packed weights use our own pool alone; libtorch's threads would only spin beside it.
  at::set_num_threads(options.weights == "packed" ? 1 : static_cast<int>(ops::num_threads()));
}

Runtime::Runtime(const ModelOptions& options)
    : Runtime(options, Checkpoint::open(model_path(options.model))) {
  ::malloc_trim(0);  // what reading the files took goes back to the system
  // From here on every step takes and gives back the same buffers: pages stay with the process
  // between steps, up to this much.
  constexpr int kKeptBytes = 4 << 20;
  ::mallopt(M_MMAP_THRESHOLD, kKeptBytes);
  ::mallopt(M_TRIM_THRESHOLD, kKeptBytes);
}

namespace {

std::shared_ptr<Model> load_weights(const ModelOptions& options, const Checkpoint& checkpoint) {
  set_threads(options);
  return load_model(checkpoint, weight_mode(options));
}

}  // namespace

// What is read beside the weights, on threads of its own.
struct Runtime::Loading {
  Loading(const ModelOptions& options, Checkpoint& checkpoint)
      : begin(std::chrono::steady_clock::now()),
        gate(std::async(std::launch::async, find_gate, std::cref(options), std::ref(checkpoint))),
        tokenizer(std::async(std::launch::async, load_tokenizer, std::cref(checkpoint))) {}

  std::chrono::steady_clock::time_point begin;
  std::future<std::optional<GateWeights>> gate;
  std::future<Tokenizer> tokenizer;
};

Runtime::Runtime(const ModelOptions& options, Checkpoint checkpoint)
    : Runtime(options, checkpoint, Loading(options, checkpoint)) {}

Runtime::Runtime(const ModelOptions& options, const Checkpoint& checkpoint, Loading loading)
    : options_(options),
      path_(checkpoint.path()),
      model_(load_weights(options, checkpoint)),
      tokenizer_(loading.tokenizer.get()),
      end_token_ids_(coppice::end_token_ids(checkpoint, tokenizer_)),
      template_(find_template(checkpoint, tokenizer_)),
      images_(ImageEncoder::load(checkpoint, weight_mode(options))) {
  if (options_.positions == "compact") {
    log_warning(
        "positions: compact: whenever the model's trained range of {} tokens is full, cached keys "
        "are renumbered by their place in the cache",
        model_->args().max_position_embeddings);
  }
  if (const std::optional<GateWeights> gate = loading.gate.get()) {
    attach_gate(*model_, *gate);
  }
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - loading.begin;
  load_seconds_ = spent.count();
}

ImageEncoder::Encoded Runtime::encode_image(const std::string& file) const {
  if (!images_) fail_argument("{} reads text alone, and a picture was given", path_);
  const MappedFile picture = MappedFile::open(file);
  try {
    return images_->encode(picture.bytes());
  } catch (const Error& error) {
    throw Error(error.code(), file + ": " + error.what());
  }
}

void Runtime::set_prompt(Request& request, std::span<const int32_t> ids,
                         std::span<const ImageEncoder::Encoded> pictures, int64_t first) const {
  if (images_) return coppice::set_prompt(request, ids, images_->image_token_id(), pictures, first);
  request.prompt.assign(ids.begin(), ids.end());
}

const ChatTemplate& Runtime::chat_template() const {
  if (!template_) {
    fail(ErrorCode::kNotFound, "{} brings no chat template; use `coppice run --raw`", path_);
  }
  return *template_;
}

CacheConfig Runtime::cache() const {
  return cache_config(model_->args(), kv_dtype(options_), c10::Device(c10::kCPU));
}

int64_t Runtime::longest_tokens(int64_t prompt, std::optional<int64_t> max_tokens) const {
  if (max_tokens && *max_tokens < EvictionConfig::kUnbounded - prompt) return prompt + *max_tokens;
  const int64_t range = model_->args().max_position_embeddings;
  if (options_.positions == "original") return std::max(prompt + 1, range);
  return options_.budget.unit == KvBudget::Unit::kFull ? prompt + range
                                                       : EvictionConfig::kUnbounded;
}

EngineConfig Runtime::engine_config(int64_t text_tokens, int64_t longest, int64_t sequences) const {
  return from_flags([&] {
    EngineConfig config;
    const CacheConfig sizes = cache();
    ModelOptions own = options_;  // one sequence's
    own.budget.bytes /= sequences;
    config.eviction = eviction_config(own, gate_kind(), budget_entries(own, sizes, text_tokens));
    config.chunk_tokens = options_.chunk;
    config.kv_dtype = kv_dtype(options_);
    config.compact_positions = options_.positions == "compact";
    config.end_token_ids = end_token_ids_;
    config.begin_token_id = tokenizer_.adds_bos() ? tokenizer_.bos_id() : std::nullopt;
    config.max_blocks =
        sequences * worst_case_blocks(sizes, config.eviction, options_.chunk, longest);
    config.scheduler.max_sequences = std::max(config.scheduler.max_sequences, sequences);
    return config;
  });
}

std::unique_ptr<Engine> Runtime::make_engine(int64_t text_tokens, int64_t longest,
                                             int64_t sequences) const {
  const EngineConfig config = engine_config(text_tokens, longest, sequences);
  return from_flags(
      [&] { return std::make_unique<Engine>(model_, config, text_streams(tokenizer_)); });
}

}  // namespace coppice
