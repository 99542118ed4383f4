#include "coppice/loader/gate_parts.h"

#include "coppice/core/error.h"

namespace coppice {
namespace {

using Layer = GateLayer;

constexpr int64_t kMostHeads = 1 << 16;
constexpr int64_t kMaxSize = int64_t{1} << 24;  // of every other size of a gate

void check_size(const char* name, int64_t value, int64_t most = kMaxSize) {
  if (value < 1 || value > most)
    fail_argument("gate: {} must be from 1 to {}, got {}", name, most, value);
}

void check_retention(const GateSpec& spec) {
  if (spec.variant != "shared" && spec.variant != "head-row" && spec.variant != "local")
    fail_argument("gate: the variant \"{}\" is unknown; expected shared, head-row or local",
                  spec.variant);
  if (spec.hidden_layers != 1 && spec.hidden_layers != 2)
    fail_argument("gate: hidden_layers must be 1 or 2, got {}", spec.hidden_layers);
  check_size("width", spec.width);
}

void check_local(const GateSpec& spec) {
  if (spec.variant != "local")
    fail_argument("gate: a {} gate has the variant local, not \"{}\"", spec.kind, spec.variant);
}

void check_kvzap(const GateSpec& spec) {
  check_local(spec);
  if (spec.hidden_layers != 0 && spec.hidden_layers != 1)
    fail_argument("gate: hidden_layers of a kvzap gate must be 0 or 1, got {}", spec.hidden_layers);
  if (spec.hidden_layers > 0) check_size("width", spec.width);
}

void check_fastkvzip(const GateSpec& spec) {
  check_local(spec);
  if (spec.hidden_layers != 0)
    fail_argument("gate: a fastkvzip gate has no hidden layers, got {}", spec.hidden_layers);
  check_size("width", spec.width);
  check_size("sinks", spec.sinks, kMostHeads);
  check_size("query_heads", spec.query_heads, kMostHeads);
  if (spec.query_heads % spec.kv_heads != 0)
    fail_argument("gate: query_heads must be a multiple of the {} KV heads, got {}", spec.kv_heads,
                  spec.query_heads);
}

std::vector<GatePart> retention_parts(const GateSpec& spec) {
  const bool shared = spec.variant == "shared";
  const bool two = spec.hidden_layers == 2;
  const int64_t g = spec.width;
  const int64_t last = shared ? spec.kv_heads * g : g;  // outputs of the last hidden layer
  const int64_t first = two ? g : last;
  std::vector<GatePart> parts = {
      {"w1", "linear1.weight", &Layer::w1, {first, spec.hidden_size}, GateStart::kDrawn},
      {"c1", "linear1.bias", &Layer::c1, {first}}};
  if (two) {
    parts.push_back({"w2", "linear2.weight", &Layer::w2, {last, g}, GateStart::kDrawn});
    parts.push_back({"c2", "linear2.bias", &Layer::c2, {last}});
  }
  parts.push_back({"head", two ? "linear3.weight" : "linear2.weight", &Layer::head,
                   shared ? std::vector<int64_t>{g} : std::vector<int64_t>{spec.kv_heads, g},
                   GateStart::kDrawn, spec.variant != "local"});
  parts.push_back(
      {"bias", "bias", &Layer::bias, {shared ? 1 : spec.kv_heads}, GateStart::kBias, shared});
  return parts;
}

std::vector<GatePart> kvzap_parts(const GateSpec& spec) {
  if (spec.hidden_layers == 0)
    return {{"head",
             "linear1.weight",
             &Layer::head,
             {spec.kv_heads, spec.hidden_size},
             GateStart::kDrawn},
            {"bias", "linear1.bias", &Layer::bias, {spec.kv_heads}, GateStart::kBias}};
  return {{"w1", "linear1.weight", &Layer::w1, {spec.width, spec.hidden_size}, GateStart::kDrawn},
          {"c1", "linear1.bias", &Layer::c1, {spec.width}},
          {"head", "linear2.weight", &Layer::head, {spec.kv_heads, spec.width}, GateStart::kDrawn},
          {"bias", "linear2.bias", &Layer::bias, {spec.kv_heads}, GateStart::kBias}};
}

std::vector<GatePart> fastkvzip_parts(const GateSpec& spec) {
  const int64_t o = spec.width;
  return {{"w1",
           "projection.weight",
           &Layer::w1,
           {(spec.query_heads + spec.kv_heads) * o, spec.hidden_size},
           GateStart::kDrawn},
          {"c1", "query_bias", &Layer::c1, {spec.query_heads * o}},
          {"q_norm", "query_norm", &Layer::q_norm, {o}, GateStart::kOne},
          {"k_norm", "key_norm", &Layer::k_norm, {o}, GateStart::kOne},
          {"sinks", "sinks", &Layer::sinks, {spec.kv_heads, spec.sinks, o}, GateStart::kDrawn},
          {"bias", "bias", &Layer::bias, {spec.query_heads}, GateStart::kBias}};
}

struct Kind {
  std::string_view name;
  void (*check)(const GateSpec&);
  std::vector<GatePart> (*parts)(const GateSpec&);
};

constexpr Kind kKinds[] = {{"retention", check_retention, retention_parts},
                           {"kvzap", check_kvzap, kvzap_parts},
                           {"fastkvzip", check_fastkvzip, fastkvzip_parts}};

const Kind& find_kind(const std::string& name) {
  for (const Kind& kind : kKinds)
    if (kind.name == name) return kind;
  fail_argument("gate: the kind \"{}\" is unknown; expected one of {}", name,
                fmt::join(gate_kinds(), ", "));
}

}  // namespace

std::vector<std::string_view> gate_kinds() {
  std::vector<std::string_view> names;
  for (const Kind& kind : kKinds) names.push_back(kind.name);
  return names;
}

void GateSpec::validate() const {
  check_size("layers", layers);
  check_size("kv_heads", kv_heads);
  check_size("hidden_size", hidden_size);
  find_kind(kind).check(*this);
}

std::vector<GatePart> gate_parts(const GateSpec& spec) {
  spec.validate();
  std::vector<GatePart> parts = find_kind(spec.kind).parts(spec);
  // Biases and norms stay float32: logits lie where bfloat16's grid would shift whole heads.
  for (GatePart& part : parts)
    part.matrix = part.start == GateStart::kDrawn && part.name != "sinks";
  return parts;
}

}  // namespace coppice
