"""Random weights of the tiny models in tests/golden/models: from a seed alone, and bfloat16 numbers."""

import math

import torch


def fill(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name and name.endswith("weight"):
            value = 1 + 0.2 * noise
        elif parameter.dim() == 1:
            value = 0.2 * noise
        elif "embed" in name or "lm_head" in name:
            value = noise * 0.5
        else:
            value = noise * 1.5 / math.sqrt(parameter[0].numel())
        parameter.data = value.to(torch.bfloat16).float()
