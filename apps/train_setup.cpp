#include "apps/train_setup.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "apps/options.h"
#include "coppice/core/error.h"
#include "coppice/core/mapped_file.h"
#include "coppice/core/sha256.h"
#include "coppice/models/model_args.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

double number(std::string_view text, const char* what) {
  double value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size())
    fail_argument("{}: expected a number, got \"{}\"", what, text);
  return value;
}

// "PATH:WEIGHT", where a path may hold colons of its own.
struct DataFlag {
  std::string path;
  double weight = 0;  // 0: none given
};

DataFlag parse_data_flag(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  std::error_code ignored;
  if (colon == std::string::npos || fs::exists(text, ignored)) return {text, 0};
  return {text.substr(0, colon),
          number(std::string_view(text).substr(colon + 1), "the weight of --data")};
}

// The commit of the checkout that the program stands in; empty when there is none.
std::string checkout_commit() {
  std::error_code ignored;
  for (fs::path at = fs::read_symlink("/proc/self/exe", ignored).parent_path();
       at.has_relative_path(); at = at.parent_path()) {
    const fs::path git = at / ".git";
    if (!fs::is_directory(git, ignored)) continue;
    std::string head = fs::exists(git / "HEAD", ignored) ? read_text_file(git / "HEAD") : "";
    if (head.starts_with("ref: ")) {
      const fs::path ref = git / head.substr(5, head.find('\n') - 5);
      head = fs::is_regular_file(ref, ignored) ? read_text_file(ref) : "";
    }
    return head.substr(0, head.find('\n'));
  }
  return {};
}

// Gates are handed on; where their maker's files lie is nobody's business.
std::string without_home(std::string text) {
  const char* home = std::getenv("HOME");
  if (home == nullptr || std::string_view(home).size() < 2) return text;
  for (std::size_t at = 0; (at = text.find(home, at)) != std::string::npos; ++at)
    text.replace(at, std::string_view(home).size(), "~");
  return text;
}

// What of the objective determines the run.
Json objective_identity(const TrainOptions& options) {
  if (options.gate_kind != "retention")
    return {{"stage", 1},
            {"gate_kind", options.gate_kind},
            {"updates", options.repeat.updates},
            {"update_tokens", options.repeat.tokens_per_update}};
  if (options.stage == 1) {
    const SurvivalTraining& survival = options.survival;
    return {{"stage", 1},
            {"budgets", options.survival_budgets},
            {"updates", survival.updates},
            {"update_tokens", survival.tokens_per_update},
            {"pair_weight", survival.pair_weight},
            {"calibration_rows", options.calibration_rows},
            {"utility", static_cast<int>(survival.utility)}};
  }
  const DistillTraining& distill = options.distill;
  if (options.stage == 3)
    return {{"stage", 3},
            {"budgets", {options.budget.least, options.budget.most}},
            {"sharpness", options.budget.sharpness},
            {"sinks", options.budget.sinks},
            {"kl_weight", options.budget.kl_weight},
            {"ntp_weight", options.budget.ntp_weight}};
  return {{"stage", 2},
          {"lambda", distill.lambda},
          {"capacity", {distill.capacity_start, distill.capacity, distill.capacity_ramp}},
          {"capacity_scope", distill.scope == ops::CapacityScope::kGlobal ? "global" : "local"},
          {"kl_weight", distill.kl_weight},
          {"ntp_weight", distill.ntp_weight}};
}

}  // namespace

void read_capacity(TrainOptions& options) {
  DistillTraining& distill = options.distill;
  const std::string& text = options.capacity;
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) {
    distill.capacity = distill.capacity_start = number(text, "--capacity");
    distill.capacity_ramp = 0;
    return;
  }
  distill.capacity_start = number(std::string_view(text).substr(0, colon), "--capacity");
  distill.capacity = number(std::string_view(text).substr(colon + 1), "--capacity");
  distill.capacity_ramp = options.capacity_ramp;
}

void read_budgets(TrainOptions& options) {
  const std::string& text = options.train_budgets;
  const std::size_t colon = text.find(':');
  options.budget.least = number(std::string_view(text).substr(0, colon), "--budgets");
  options.budget.most = colon == std::string::npos
                            ? options.budget.least
                            : number(std::string_view(text).substr(colon + 1), "--budgets");
  options.budget.kl_weight = options.distill.kl_weight;
  options.budget.ntp_weight = options.distill.ntp_weight;
  if (options.stage == 3 && options.distill.recompute) fail_argument("--recompute is for stage 2");
}

void read_teacher_cache(TrainOptions& options) {
  if (options.teacher_cache.empty()) return;
  if (options.stage != 2)
    fail_argument(
        "--teacher-cache is for stage 2: stage {} needs what every layer reads, not the last "
        "hidden "
        "states alone",
        options.stage);
  options.teacher_cache_limit = read_bytes("--teacher-cache-bytes", options.teacher_cache_bytes);
}

Json TrainData::identity() const {
  Json json = Json::array();
  for (const Json& file : manifest)
    json.push_back({{"sha256", file["sha256"]}, {"weight", file["weight"]}});
  return json;
}

TrainData open_data(const TrainOptions& options) {
  TrainData data;
  for (const std::string& text : options.data) {
    const DataFlag flag = parse_data_flag(text);
    data.files.push_back(DocumentFile::open(flag.path));
    const DocumentFile& file = data.files.back();
    if (flag.weight != 0) data.weights.push_back(flag.weight);
    data.manifest.push_back({{"path", flag.path},
                             {"sha256", file.sha256()},
                             {"documents", file.size()},
                             {"bytes", file.file_bytes()},
                             {"weight", flag.weight == 0 ? Json() : Json(flag.weight)}});
  }
  if (!data.weights.empty() && data.weights.size() != data.files.size())
    fail_argument("--data: give every file a weight or none, got {} for {} files",
                  data.weights.size(), data.files.size());
  return data;
}

void read_gate_kind(TrainOptions& options) {
  options.repeat.updates = options.survival.updates;
  options.repeat.tokens_per_update = options.survival.tokens_per_update;
  options.repeat.seed = options.seed;
  if (options.gate_kind == "retention") return;
  repeat_target(options.gate_kind);
  if (options.stage != 1)
    fail_argument("a {} gate is trained from forward passes alone: --stage 1, not {}",
                  options.gate_kind, options.stage);
  constexpr int64_t kChunk = 2048;  // of KVzip
  if (options.length > kChunk)
    fail_argument("--length {}: documents are repeated whole, and {} tokens is the most that is",
                  options.length, kChunk);
}

void set_repeat_request(RepeatTraining& repeat, const Tokenizer& tokenizer,
                        const ChatTemplate* chat) {
  const std::string request = "\n\nRepeat the previous context exactly.";
  const std::string place = "PLACE-OF-THE-CONTEXT";
  std::string before, behind = "\n\n";
  if (chat != nullptr) {
    ChatRequest asked;
    asked.messages = OrderedJson::array({{{"role", "user"}, {"content", place}}});
    asked.add_generation_prompt = true;
    const std::string text = chat->render(asked).text;
    const std::size_t at = text.find(place);
    if (at == std::string::npos)
      fail_argument("the chat template does not write a user's text as it is");
    before = text.substr(0, at);
    behind = text.substr(at + place.size());
  }
  const auto ids = [&tokenizer](const std::string& text) {
    const std::vector<int32_t> tokens = tokenizer.encode(text, {});
    return std::vector<int64_t>(tokens.begin(), tokens.end());
  };
  repeat.before = ids(before);
  repeat.between = ids(request + behind);
}

namespace {

// What is published, or for retention gates has proved enough.
void set_sizes(GateSpec& spec, const TrainOptions& options, const ModelArgs& args) {
  spec.kind = options.gate_kind;
  spec.variant = spec.kind == "retention" ? options.variant : "local";
  if (spec.kind == "fastkvzip") {
    spec.hidden_layers = options.hidden_layers.value_or(0);
    spec.width = options.width.value_or(16);
    spec.sinks = 16;
    spec.query_heads = args.num_attention_heads;
  } else if (spec.kind == "kvzap") {
    spec.hidden_layers = options.hidden_layers.value_or(1);
    spec.width = options.width.value_or(std::max<int64_t>(1, args.hidden_size / 8));
  } else {
    spec.hidden_layers = options.hidden_layers.value_or(2);
    spec.width = options.width.value_or(128);
  }
}

// Where scores of a new gate lie: lifetimes of e^8 tokens, or logs and odds of a small weight.
double first_bias(const TrainOptions& options) {
  if (options.bias) return *options.bias;
  return options.gate_kind == "retention" ? 8.0 : options.gate_kind == "kvzap" ? -6.0 : 0.0;
}

}  // namespace

GateWeights first_gate(const TrainOptions& options, const Checkpoint& checkpoint) {
  const ModelArgs args = ModelArgs::from_config(checkpoint.config());
  if (!options.init_from.empty()) {
    GateWeights gate = load_gate(options.init_from);
    if (gate.spec.kind != options.gate_kind)
      fail_argument("{} holds a {} gate, but --gate-kind says {}", options.init_from,
                    gate.spec.kind, options.gate_kind);
    check_gate(gate.spec, {args.num_hidden_layers, args.num_key_value_heads, args.hidden_size,
                           checkpoint.sha256()});
    gate.spec.base_sha256 = checkpoint.sha256();
    return gate;
  }
  GateSpec spec;
  set_sizes(spec, options, args);
  spec.layers = args.num_hidden_layers;
  spec.kv_heads = args.num_key_value_heads;
  spec.hidden_size = args.hidden_size;
  spec.base_model = fs::path(checkpoint.path()).filename().string();
  spec.base_sha256 = checkpoint.sha256();
  return new_gate(spec, first_bias(options), options.seed);
}

Json run_identity(const TrainOptions& options, const TrainData& data, const Checkpoint& checkpoint,
                  const GateSpec& spec) {
  Json gate = {
      {"variant", spec.variant}, {"width", spec.width}, {"hidden_layers", spec.hidden_layers}};
  if (options.init_from.empty())
    gate["bias"] = first_bias(options);
  else
    gate["from"] = sha256_of(MappedFile::open(options.init_from).bytes());
  Json json = objective_identity(options);
  if (!options.teacher_cache.empty()) json["teacher"] = "by document";  // other roundings
  json.update({{"model", checkpoint.sha256()},
               {"data", data.identity()},
               {"gate", gate},
               {"seed", options.seed},
               {"length", options.length},
               {"min_tokens", options.min_tokens},
               {"pack_window", options.window_rows},
               {"dtype", options.dtype}});
  return json;
}

Json last_steps(const std::vector<Json>& records, std::size_t count) {
  Json mean = Json::object();
  std::size_t seen = 0;
  for (auto at = records.rbegin(); at != records.rend() && seen < count; ++at) {
    if (!at->contains("gradient_norm")) continue;  // an evaluation
    for (const char* key : {"kl", "ntp", "capacity", "survival", "pair", "sigma", "mean_beta",
                            "repeat", "r2", "gradient_norm"})
      if (at->contains(key)) mean[key] = mean.value(key, 0.0) + at->value(key, 0.0);
    ++seen;
  }
  for (auto& [key, value] : mean.items()) value = value.get<double>() / static_cast<double>(seen);
  if (seen > 0)
    for (const char* key : {"step", "tokens", "seconds", "kept_per_layer"})
      for (auto at = records.rbegin(); at != records.rend() && !mean.contains(key); ++at)
        if (at->contains(key)) mean[key] = (*at)[key];
  mean["averaged_over_steps"] = seen;
  return mean;
}

Json training_record(const TrainOptions& options, const TrainData& data, const Json& last,
                     const Json& config, const Json& before) {
  Json files = data.manifest;
  for (Json& file : files) file["path"] = without_home(file["path"]);
  Json from;
  if (!options.init_from.empty())
    from = {{"file", fs::path(options.init_from).filename().string()}, {"training", before}};
  return {{"command", without_home(options.command_line)},
          {"config", config},
          {"data", files},
          {"started_from", from},
          {"commit", checkout_commit()},
          {"last_steps", last}};
}

}  // namespace coppice
