// Retention gates on disk: our safetensors format, and the published layout.
//
// Ours: metadata "format" = "coppice-gate", "format_version" = "1", "variant", "hidden_layers",
// "width", "layers", "kv_heads", "hidden_size", "base_model", "base_sha256", "training" (JSON
// text). Version "2" is for gates of other kinds than retention and adds "kind", "sinks" and
// "query_heads". Tensors, BF16 or F32, with C = hidden_size, g = width, Hkv = kv_heads, x the
// gate's input:
//
//   hidden_layers  u(x)                                     logit z of head h
//   1              silu(w1 x + c1)                          row h of head . u + bias[h]
//   2              silu(w2 silu(w1 x + c1) + c2)            (shared: head . u_h + bias)
//
//   variant    w1, c1 of 1 layer        of 2 layers: w1, c1; w2, c2       head       bias
//   shared     [Hkv g, C], [Hkv g]      [g, C], [g]; [Hkv g, g], [Hkv g]  [g]        [1]
//   head-row   [g, C], [g]              [g, C], [g]; [g, g], [g]          [Hkv, g]   [Hkv]
//   local      as head-row                                                [Hkv, g]   [Hkv]
//
// w1, c1, w2, c2 are "layers.{l}.w1" and so on, always per layer. head and bias are "head" and
// "bias" where all layers share them (shared: both; head-row: head), else "layers.{l}.head",
// "layers.{l}.bias". In `shared`, u_h are the g values of u from h g on: Proj_{l,h} of the paper.
//
// Of the other kinds all is per layer (variant local), and what comes out is a score that does not
// change with age (docs/maths.md 25, 26):
//
//   kvzap      1 hidden layer: w1 [g, C], c1 [g], head [Hkv, g], bias [Hkv]; none: head [Hkv, C],
//              bias [Hkv]
//   fastkvzip  w1 [(Hq + Hkv) g, C], rows of queries first; c1 [Hq g], q_norm [g], k_norm [g],
//              sinks [Hkv, S, g], bias [Hq], with Hq = query_heads, S = sinks
//
// Published: {model|model.language_model}.layers.{l}.self_attn.retention_gate.{linear1.weight,
// linear1.bias, linear2.weight, linear2.bias, linear3.weight, bias}, in safetensors or in a
// trimkv_weights.pth with an optional config.json beside it. Four tensors a layer are a local gate
// of one hidden layer; six are head-row of two (linear3 under every layer or under one), or local
// where the caller says so.
//
// A gate with a value that is not finite, a part missing or a part too many is refused.
// Source: arXiv:2605.09649, Eq. gate, and the published checkpoints.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coppice/core/json.h"
#include "coppice/core/stored_tensor.h"

namespace coppice {

struct GateSpec {
  std::string kind = "retention";  // or "kvzap", "fastkvzip"
  std::string variant;             // "shared", "head-row" or "local"
  int64_t hidden_layers = 0;       // retention 1 or 2, kvzap 0 or 1, fastkvzip 0
  int64_t width = 0;               // g
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t hidden_size = 0;
  int64_t sinks = 0;        // S, of fastkvzip alone
  int64_t query_heads = 0;  // Hq, likewise
  std::string base_model;   // for people; may be empty
  std::string base_sha256;  // of the base model's weight files; empty when unknown
  Json training = Json::object();

  // Throws kInvalidArgument naming the field that is out of range.
  void validate() const;
};

// Tensors of one decoder layer, float32 on the CPU, of the shapes drawn above; what the gate does
// not have is undefined (loader/gate_parts.h lists what it has). Layers that share head or bias
// hold the same tensor.
struct GateLayer {
  at::Tensor w1, c1, w2, c2, head, bias;
  at::Tensor q_norm = {}, k_norm = {}, sinks = {};
};

struct GateWeights {
  GateSpec spec;
  std::vector<GateLayer> layers;  // [spec.layers]

  // Throws kInvalidArgument when a tensor is missing, misshapen, not float32 or not finite.
  void validate() const;
};

struct GateReadOptions {
  // What the published layout does not tell; empty leaves it to the file.
  std::string variant = {};
  std::string base_model = {};
  std::string base_sha256 = {};
};

// Reads either format. `path` is a file, or a folder that holds trimkv_weights.pth or
// gate.safetensors. Throws kNotFound, or kInvalidArgument with the reason.
GateWeights load_gate(const std::string& path, const GateReadOptions& options = {});

// Sizes and training record alone; checks the file as load_gate does.
GateSpec read_gate_spec(const std::string& path);

// The model that a gate is to work in.
struct GateBase {
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t hidden_size = 0;
  std::string sha256;  // empty: not compared
};

// Throws kInvalidArgument saying what does not fit: layers, KV heads, hidden size, or the base
// model's hash unless `allow_other_base`. A gate that names no hash fits by its sizes alone.
void check_gate(const GateSpec& spec, const GateBase& base, bool allow_other_base = false);

// Writes our format, F32 or BF16 (rounded to nearest even), whole or not at all. In a BF16 file all
// but matrices is F32 all the same: logits lie near 8 or 18, where bfloat16's grid of 1/32 or 1/8
// would shift whole heads against each other.
void save_gate(const std::string& path, const GateWeights& weights, StorageType dtype);

// Reads `source` in any format and writes ours to `target`. Returns what was written.
GateSpec import_gate(const std::string& source, const std::string& target,
                     const GateReadOptions& options = {}, StorageType dtype = StorageType::kBF16);

}  // namespace coppice
