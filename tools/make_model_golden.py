#!/usr/bin/env python3
"""Makes tests/golden/models/: tiny random models in both file formats, with what `transformers`
computes from them.

Each case is a folder:
  hf/config.json, hf/model.safetensors   a Hugging Face checkpoint
  model.gguf                             the same weights, names and row order as GGUF has them
  expected.safetensors                   prompt [T], logits [T, V], generated [G];
                                         logits_at_<p> [T, V] with positions p .. p + T - 1; inv_freq

Weights come from seeds and are bfloat16 numbers, stored as such, so that nothing is lost on the way;
the reference runs them in float32. Run with the oracle Python: tools/make_model_golden.py
"""

import argparse
import json
import math
import pathlib

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from golden_weights import fill

PROMPT_TOKENS = 12
GENERATED_TOKENS = 64
SMALLEST_MARGIN = 2e-3  # between the two best logits of a greedy step

COMMON = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=64, max_position_embeddings=512, rms_norm_eps=1e-5,
    bos_token_id=None, eos_token_id=None, pad_token_id=None,
)
LLAMA3_ROPE = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=8192, rope_theta=500000.0,
)
CASES = {
    "llama": (transformers.LlamaConfig, dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "llama-rope3": (transformers.LlamaConfig, dict(
        rope_parameters=LLAMA3_ROPE, max_position_embeddings=131072, tie_word_embeddings=True, head_dim=16)),
    "llama-bias": (transformers.LlamaConfig, dict(
        attention_bias=True, mlp_bias=True,
        rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=10000.0))),
    "qwen2": (transformers.Qwen2Config, dict(
        tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen3": (transformers.Qwen3Config, dict(
        hidden_size=64, num_attention_heads=8, num_key_value_heads=2, head_dim=16,
        rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
}
FAR_POSITIONS = {"llama-rope3": (10, 9000, 60000)}


def greedy(model, prompt):
    ids, smallest = list(prompt), math.inf
    for _ in range(GENERATED_TOKENS):
        best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        smallest = min(smallest, (best.values[0] - best.values[1]).item())
        ids.append(best.indices[0].item())
    return ids[len(prompt):], smallest


def gguf_rows(name, tensor, config):
    """Llama files keep q and k rows interleaved, for a rotation of neighbours."""
    if config.model_type != "llama" or not any(part in name for part in ("q_proj", "k_proj")):
        return tensor
    heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
    halves = tensor.reshape(heads, 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def rope_factors(config):
    rope = config.rope_parameters
    length = rope["original_max_position_embeddings"]
    factors = []
    for i in range(0, config.head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / config.head_dim)
        if wavelength < length / rope["high_freq_factor"]:
            factors.append(1.0)
        elif wavelength > length / rope["low_freq_factor"]:
            factors.append(rope["factor"])
        else:
            share = (length / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - share) / rope["factor"] + share))
    return np.array(factors, dtype=np.float32)


def write_gguf(path, model, config):
    writer = gguf.GGUFWriter(path, config.model_type)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    writer.add_name("tiny random " + config.model_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(config))
    arch = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[config.model_type]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        array = gguf_rows(name, parameter.detach(), config).contiguous().numpy()
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if array.ndim == 1:
            writer.add_tensor(target, array)
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(target, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_case(name, folder):
    config_class, options = CASES[name]
    config = config_class(**{**COMMON, **options})
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    prompt = torch.randint(0, config.vocab_size, (PROMPT_TOKENS,),
                           generator=torch.Generator().manual_seed(1)).tolist()
    for seed in range(100):
        fill(model, seed)
        generated, margin = greedy(model, prompt)
        if margin > SMALLEST_MARGIN and len(set(generated)) > 8:
            break
    else:
        raise SystemExit(f"{name}: no seed gives a clear greedy choice at every step")
    ids = torch.tensor([prompt])
    expected = {
        "prompt": torch.tensor(prompt),
        "generated": torch.tensor(generated),
        "logits": model(ids).logits[0],
        "inv_freq": model.model.rotary_emb.inv_freq.float(),
    }
    for position in FAR_POSITIONS.get(name, ()):
        positions = torch.arange(position, position + len(prompt)).unsqueeze(0)
        expected[f"logits_at_{position}"] = model(ids, position_ids=positions).logits[0]

    (folder / "hf").mkdir(parents=True, exist_ok=True)
    # The keys that config.json files in the wild have, whatever this version of the library writes.
    text = config.to_dict()
    text["architectures"] = [type(model).__name__]
    text = {key: value for key, value in text.items()
            if key in ("architectures", "model_type", "hidden_act", "tie_word_embeddings",
                       "attention_bias", "mlp_bias", "head_dim", "rope_parameters", *COMMON)
            and value is not None}
    (folder / "hf" / "config.json").write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")
    weights = {key: value.detach().to(torch.bfloat16).clone()
               for key, value in model.named_parameters()}
    save_file(weights, folder / "hf" / "model.safetensors")
    write_gguf(folder / "model.gguf", model, config)
    save_file({key: value.detach().contiguous() for key, value in expected.items()},
              folder / "expected.safetensors")
    print(f"{name}: seed {seed}, smallest margin {margin:.4f}, "
          f"logits up to {expected['logits'].abs().max():.2f}, {len(set(generated))} distinct ids")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests" / "golden" / "models")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        for name in CASES:
            make_case(name, args.out / name)


if __name__ == "__main__":
    main()
