#!/usr/bin/env python3
"""Writes tests/golden/gate_rg10.pth and gate_rg.pth: gates in the published layout, by torch.save.

Needs the PyPI package torch. Two layers, hidden size 6, width 4, 3 KV heads. Value i of a tensor is
(i * 7 + layer * 3 + salt) % 16 - 8, which bfloat16 holds exactly; the salt counts the tensors of a
layer from 0 in the order below. rg10: a dict of bfloat16 tensors, linear3 the same under every
layer. rg: an OrderedDict with module metadata of float32 parameters, under the prefix of
vision-language models.
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


if __name__ == "__main__":
    main()
