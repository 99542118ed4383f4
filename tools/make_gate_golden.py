#!/usr/bin/env python3
"""Writes tests/golden/gate_rg10.pth, gate_rg.pth and gate_qwen3_vl.pth: gates in the published layout, by torch.save.

Needs the PyPI package torch. Two layers, hidden size 6, width 4, 3 KV heads. Value i of a tensor is
(i * 7 + layer * 3 + salt) % 16 - 8, which bfloat16 holds exactly; the salt counts the tensors of a
layer from 0 in the order below. rg10: a dict of bfloat16 tensors, linear3 the same under every
layer. rg: an OrderedDict with module metadata of float32 parameters, under the prefix of
vision-language models. gate_qwen3_vl.pth: as published for Qwen3-VL, with random bfloat16 values
and the sizes of the tiny model of tools/make_qwen3_vl_golden.py.
"""
import collections
import pathlib

import torch

RG10 = [("linear1.weight", (4, 6)), ("linear1.bias", (4,)), ("linear2.weight", (4, 4)),
        ("linear2.bias", (4,)), ("linear3.weight", (3, 4)), ("bias", (3,))]
RG = [("linear1.weight", (4, 6)), ("linear1.bias", (4,)), ("linear2.weight", (3, 4)), ("bias", (3,))]


def values(shape, layer, salt):
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + layer * 3 + salt) % 16 - 8).float().reshape(shape)


def qwen3_vl(layers=3, hidden=32, width=8, kv_heads=2):
    generator = torch.Generator().manual_seed(0)
    shapes = [("linear1.weight", (width, hidden)), ("linear1.bias", (width,)), ("linear2.weight", (width, width)),
              ("linear2.bias", (width,)), ("linear3.weight", (kv_heads, width)), ("bias", (kv_heads,))]
    result = {}
    for layer in range(layers):
        for name, shape in shapes:
            key = f"model.language_model.layers.{layer}.self_attn.retention_gate.{name}"
            tensor = torch.randn(shape, generator=generator) * 0.5 + (3 if name == "bias" else 0)
            if name == "linear3.weight" and layer > 0:  # tied
                tensor = result[key.replace(f".{layer}.", ".0.")]
            result[key] = tensor.bfloat16().clone()
    return result


def main():
    golden = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
    rg10 = {}
    for layer in range(2):
        for salt, (name, shape) in enumerate(RG10):
            tensor = values(shape, 0 if name == "linear3.weight" else layer, salt).bfloat16()
            rg10[f"model.layers.{layer}.self_attn.retention_gate.{name}"] = tensor
    torch.save(rg10, golden / "gate_rg10.pth")
    rg = collections.OrderedDict()
    for layer in range(2):
        for salt, (name, shape) in enumerate(RG):
            key = f"model.language_model.layers.{layer}.self_attn.retention_gate.{name}"
            rg[key] = torch.nn.Parameter(values(shape, layer, salt))
    rg._metadata = collections.OrderedDict({"": {"version": 1}})
    torch.save(rg, golden / "gate_rg.pth")
    torch.save(qwen3_vl(), golden / "gate_qwen3_vl.pth")


if __name__ == "__main__":
    main()
